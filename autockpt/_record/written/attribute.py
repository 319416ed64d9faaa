"""Whose bytes a storage is: the model's, the step's, the loop's. A pure function of what was written down.

    a step that runs ── in_place.py, runs.py ──▶ Written ── attribute ──▶ Attributed ── events_of ──▶ the step's events

The recorder decides nothing while a step runs. Whose a storage is follows from what it wrote alone:

    stood before   ├ a teacher ─────────────────────────────────────────────┤   older: does not count
                   ├ targets ────────────────┤                                  loop: of the step, if made anew after it
    step               ├ an activation ─┤                                       step
                               ├ Adam's moments ────────────────────────────┤   optimizer: the next step uses it again
                               ├ a cache of keys ───────────────────────────┤   left: stands under the next step
    after it                                       ├ the next targets ──────┤   next: of the next step

A loop that is told of wrongly is a row of the table in `tests/record/test_attribute.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from ..._data.step.tables import Static
from ..._ranks.buckets import buckets_among
from ..._torch.devices import Event
from ..watch.marks import Mark, MarkKind

HeldBy = Literal["model", "gradient", "model's objects", "graph", "loop"]
"""What holds a storage as a step begins: the model itself, and its batch; a gradient, also one that FSDP2 is yet to
reduce, and what collectives have brought; attributes of the model's, and buffers of a pipeline's stage; the graph of an
earlier step; anything else, which only the loop can have."""


class Stood(NamedTuple):
    """A storage that is allocated as the step begins.

    Attributes:
        key: its key on the tape; a negative number if only a graph would hold it, and it waits elsewhere.
        bytes: its size, as by the allocator.
        held_by: what holds it.
        goes: whether it is freed before the next step begins.
    """

    key: int
    bytes: int
    held_by: HeldBy
    goes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A step, from its first forward to the next step's.

    Attributes:
        events: the events of the tape, with frees of what stood.
        marks: what its markers stand for, by number.
        stood: what is allocated as the step begins.
        ends: storages of the optimizers' states, by the number of a marker where a backward or an optimizer's step is
            over. The last one ends the step; if there is none, it ends with the tape.
        casts: by marker, casts of parameters that autocast has cached, and that an operator reads there.
        cast_bytes: the size of each such cast.
        given: sizes of the arguments of each forward after the first, by storage, by marker.
        elsewhere: storages that are counted elsewhere as the next step begins: gradients, arguments, what is gathered.
        repeats: whether the loop makes each time what it made before this step. Else all that goes is from the loop.
        put_back: whether what the step leaves is put back after it.
        threads: whether threads that no tape sees may free memory, as those of collectives on a CPU do.
        bucket_bytes: bytes of the buckets that DistributedDataParallel allocated anew since the step began.
        views: whether gradients are views of these.
    """

    events: Sequence[Event]
    marks: Mapping[int, Mark]
    stood: Sequence[Stood] = ()
    ends: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    casts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    cast_bytes: Mapping[int, int] = field(default_factory=dict)
    given: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()
    repeats: bool = False
    put_back: bool = False
    threads: bool = False
    bucket_bytes: int = 0
    views: bool = False


Whose = Literal[
    "model", "gradient", "held", "replaced", "graph", "failed", "loop", "older", "cast", "given",
    "step", "optimizer", "bucket", "left", "workspace", "lost", "recorder",
    "next", "between",
]  # fmt: skip
"""Whose bytes a storage is. From before the step:

model       parameters, buffers and the batch
gradient    gradients that the step adds to or frees
held        objects of the model's, or graphs of earlier steps, that are still there when the next step begins
replaced    objects of the model's that the step frees, as the next one frees what takes their place
graph       a graph of an earlier step that this one frees, as the next one frees this one's
failed      graphs of an earlier step in a loop that frees none: of one that failed
loop        what the loop made before the step, freed in it, and makes anew for the next one
older       all else that only the loop has: a teacher, an average of the weights, what was there before the loop
cast        casts of parameters that autocast cached in an earlier step
given       arguments of the step's later forwards

Allocated in the step:

step        what it frees, and gradients
optimizer   the optimizer's state, which later steps use again
bucket      buckets of DistributedDataParallel, which later steps use again
left        what else is there when the next step begins
workspace   what operators keep for themselves, as cuBLAS does in a first step, which later steps use again
lost        what a thread that no tape sees has freed: taken to be freed at once
recorder    what recording itself allocates

Allocated after it, until the next one begins:

next        what is still there then: of the next step
between     all else: an evaluation, a few numbers for a log, and what counts elsewhere, such as the next arguments
"""

STARTS: frozenset[Whose] = frozenset({"gradient", "replaced", "graph", "loop", "cast", "left"})
"""Of these what stood before the step is allocated as the step begins, and may be freed in it."""

OF_STEP: frozenset[Whose] = frozenset({"step", "left", "lost"})
"""Allocations of these are the step's."""

OWN_WORK: frozenset[MarkKind] = frozenset({"aside", "release", "ready", "held", "gathered", "found"})
"""At these markers the recorder's own work, which an ``aside`` begins, is not over."""

NUMBER_BYTES = 512
"""What one number takes on a device; on a host it takes less. Such small tensors do not count: a loop keeps some of
every step, as losses for its log, and does not free them when the next step begins."""


class Storage(NamedTuple):
    """A storage, and whose bytes it is.

    Attributes:
        key: its key on the tape while it is allocated.
        bytes: its size.
        whose: whose bytes it is.
        born: the event that allocates it; -1 if it stood before the step.
        copy: whether it is a copy of a saved tensor, as which it counts.
    """

    key: int
    bytes: int
    whose: Whose
    born: int = -1
    copy: bool = False


@dataclass(frozen=True, slots=True)
class Attributed:
    """Whose bytes each storage is.

    Attributes:
        storages: those that stood, then the others as they were first seen.
        over: the event with which the step is over.
    """

    storages: tuple[Storage, ...]
    over: int

    def bytes_of(self, *whose: Whose) -> list[int]:
        """Return the sizes of the storages that are somebody's, in order."""
        return [each.bytes for each in self.storages if each.whose in whose]

    def of_step(self) -> list[Storage]:
        """Return the storages that are tensors of the step's profile, in the order of their numbers there."""
        began = [each for each in self.storages if each.born < 0 and each.whose in STARTS]
        own = (each for each in self.storages if each.born >= 0 and each.whose in OF_STEP and not each.copy)
        return began + sorted(own, key=lambda each: each.born)

    def standing(self, counted: Static) -> Static:
        """Return the bytes that stand under the step, given those that are counted for the model and its batch."""
        left_bytes = unlike_bytes(self.bytes_of("left"), self.bytes_of("loop")) - sum(self.bytes_of("replaced"))
        other_bytes = max(left_bytes, 0) + sum(self.bytes_of("held", "workspace"))
        return msgspec.structs.replace(
            counted,
            input_bytes=counted.input_bytes + sum(self.bytes_of("given")),
            other_bytes=counted.other_bytes + other_bytes,
        )


def attribute(written: Written) -> Attributed:
    """Say whose bytes each storage is. O(events).

    Args:
        written: what was written down.
    """
    over, seen = _over(written), _walk(written)
    told = _told_together(written, seen, over)
    whose = (told.get(each) or _told_alone(each, written, over) for each in seen)
    storages = zip(seen, whose, strict=True)
    return Attributed(tuple(Storage(each.key, each.bytes, own, each.born, each.copy) for each, own in storages), over)


def events_of(written: Written, found: Attributed) -> list[Event]:
    """Return the events of the step alone: what stood is allocated as it begins, and what outlives it is not freed.

    Args:
        written: what was written down.
        found: whose bytes each storage is.
    """
    own = found.of_step()
    events = [Event("alloc", each.key, each.bytes) for each in own if each.born < 0]
    whose = {each.born: each.whose for each in own}
    last = written.events[found.over].key if found.over < len(written.events) else -1
    for place, event in enumerate(written.events[: found.over + 1]):
        if event.kind == "alloc":
            events += [event] if place in whose else []
            events += [Event("free", event.key)] if whose.get(place) == "lost" else []
        elif event.kind == "free" or event.key not in written.ends or event.key == last:
            events.append(event)  # not where another end follows
    return events


def unlike_bytes(made: Iterable[int], stood: Iterable[int]) -> int:
    """Return the bytes of the sizes in `made` that have no match in `stood`."""
    return sum((Counter(made) - Counter(stood)).elements())


@dataclass(slots=True, eq=False)
class _Seen:
    """What one walk along the tape finds out about a storage.

    Attributes:
        key, bytes, born: see `Storage`.
        held_by: what held it as the step began; empty if nobody saw it then.
        went: whether it stood before the step and is freed before the next one.
        own: whether the recorder allocated it for its own work.
        copy: whether it is a copy of a saved tensor.
        named: whether some marker names it.
        cast: whether it is a cast that autocast had cached.
        state: whether it is an optimizer's.
        given: whether it is an argument of a later forward.
        freed: whether the tape saw it freed.
        here: whether it is there as the next step begins.
    """

    key: int
    bytes: int
    born: int = -1
    held_by: HeldBy | Literal[""] = ""
    went: bool = False
    own: bool = False
    copy: bool = False
    named: bool = False
    cast: bool = False
    state: bool = False
    given: bool = False
    freed: bool = False
    here: bool = False

    @property
    def may_stay(self) -> bool:
        """Whether what the step leaves behind may be this."""
        return self.here and self.named and not self.state and (self.copy or not self.own)


def _walk(written: Written) -> list[_Seen]:
    seen = [_Seen(each.key, each.bytes, held_by=each.held_by, went=each.goes) for each in written.stood]
    live, own_work = {each.key: each for each in seen}, False
    told = written.given.keys() | written.casts.keys() | written.ends.keys()
    for place, event in enumerate(written.events):
        if event.kind == "alloc":
            live[event.key] = _Seen(event.key, event.bytes, place, own=own_work)
            seen.append(live[event.key])
        elif event.kind == "free":
            if (each := live.pop(event.key, None)) is not None:
                each.freed = True
        else:
            mark = written.marks[event.key]
            own_work = mark.kind in OWN_WORK and (own_work or mark.kind == "aside")
            if event.key in told:
                _tell(written, event.key, live, seen)
            for key in mark.keys:
                if key in live:
                    live[key].named, live[key].copy = True, live[key].copy or mark.kind == "unpack"
    for each in live.values():
        each.here = True
    return seen


def _tell(written: Written, number: int, live: dict[int, _Seen], seen: list[_Seen]) -> None:
    """Note of storages what a marker tells: arguments of a later forward, casts, or an optimizer's state.

    The marker names a storage by its key. Later another storage may have the same key.
    """

    def at(key: int, size: int) -> _Seen:
        if key not in live:  # it stood before the step, where nobody saw it
            live[key] = _Seen(key, size)
            seen.append(live[key])
        return live[key]

    for key, size in written.given.get(number, {}).items():
        at(key, size).given = True
    for key in written.casts.get(number, ()):
        at(key, written.cast_bytes[key]).cast = True
    for key in written.ends.get(number, ()):
        if key in live:
            live[key].state = True


def _over(written: Written) -> int:
    """Return the event with which the step is over: the last end, or the last marker if a forward follows that.

    No backward came to such a forward: its graph is only held.
    """
    last = max(written.ends, default=-1)
    if last >= 0 and any(number > last and mark.kind == "enter" for number, mark in written.marks.items()):
        last = max(written.marks)
    places = (place for place, event in enumerate(written.events) if event.kind == "mark" and event.key == last)
    return next(places, len(written.events))


def _told_together(written: Written, seen: Sequence[_Seen], over: int) -> dict[_Seen, Whose]:
    """Say whose the storages are that are recognized only by other storages.

    These are buckets, what the loop makes anew for the next step, and graphs that a failed step left.
    """
    stays = [each for each in seen if each.here and each.key not in written.elsewhere]
    after = [each for each in stays if each.born > over and each.bytes > NUMBER_BYTES]
    within = [each for each in (seen if written.views else stays) if each.may_stay and 0 <= each.born <= over]
    # Buckets are made before a forward: they come last of all, or first in the step.
    buckets = _buckets(after[::-1], written) | _buckets(within, written)
    made = [each for each in after if each not in buckets]
    goes = [each for each in seen if each.went and each.held_by == "loop"]
    graphs = [each for each in seen if each.held_by == "graph"]
    whose: dict[_Seen, Whose] = dict.fromkeys(made, "next")
    whose.update(dict.fromkeys(_alike(goes, made) if written.repeats else goes, "loop"))
    # A loop that holds graphs anew in each step frees an older one in each. Else one was left by a step that failed.
    whose.update(dict.fromkeys([] if any(each.went for each in graphs) else graphs, "failed"))
    return {**whose, **dict.fromkeys(buckets, "bucket")}


def _buckets(found: Sequence[_Seen], written: Written) -> set[_Seen]:
    among = buckets_among(((number, each.bytes) for number, each in enumerate(found)), written.bucket_bytes)
    return {found[number] for number in among}


def _alike(stood: Iterable[_Seen], made: Iterable[_Seen]) -> Iterator[_Seen]:
    """Yield those of `stood` that have a match in `made`: an equal size, used once."""
    left = Counter(each.bytes for each in made)
    for each in stood:
        if left[each.bytes] > 0:
            left[each.bytes] -= 1
            yield each


def _told_alone(each: _Seen, written: Written, over: int) -> Whose:
    """Say whose a storage is that is told by itself."""
    if each.born > over:
        return "between"
    left = each.may_stay and not each.cast and not written.put_back and each.key not in written.elsewhere
    if each.born < 0:
        return _of_stood(each, left=left)
    return "left" if left else _of_step(each, threads=written.threads)


def _of_stood(each: _Seen, *, left: bool) -> Whose:
    """Say whose a storage is that was allocated before the step."""
    if each.held_by in ("model", "gradient"):
        return "model" if each.held_by == "model" else "left" if left else "gradient"
    if each.held_by == "model's objects":
        return "replaced" if each.went else "held"
    if each.held_by == "graph":
        return "graph" if each.went else "held"
    return "cast" if each.cast else "given" if each.given else "older"


def _of_step(each: _Seen, *, threads: bool) -> Whose:
    """Say whose is what was allocated in the step and is not left behind."""
    if each.state:
        return "optimizer"
    if each.copy or each.named or each.freed:
        return "recorder" if each.own and not each.copy else "step"
    if each.here and not threads:
        return "workspace"
    return "recorder" if each.own else "lost"
