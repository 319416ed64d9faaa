"""Whose bytes a storage is: the model's, the step's, the loop's. A pure function of what was written down.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from .._data.tables import Static
from .._device import Event
from .._ranks.buckets import buckets_among
from .written import Stood, Written

Whose = Literal[
    "model", "gradient", "held", "replaced", "graph", "failed", "loop", "older", "cast", "given",
    "step", "optimizer", "bucket", "left",
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

step        what it frees; gradients; workspaces of operators
optimizer   the optimizer's state, which later steps use again
bucket      buckets of DistributedDataParallel, which later steps use again
left        what else is there when the next step begins

Allocated after it, until the next one begins:

next        what is still there then: of the next step
between     all else: an evaluation, a few numbers for a log, and what counts elsewhere, such as the next arguments
"""

STARTS: frozenset[Whose] = frozenset({"gradient", "replaced", "graph", "loop", "cast", "left"})
"""Of these what stood before the step is allocated as the step begins, and may be freed in it."""

ASIDE: frozenset[Whose] = frozenset({"optimizer", "bucket", "next", "between"})
"""Allocations of these are not of the step."""

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
        died: the event that frees it; -1 if there is none.
    """

    key: int
    bytes: int
    whose: Whose
    born: int = -1
    died: int = -1


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

    def standing(self, counted: Static, bucket_bytes: int) -> Static:
        """Return the bytes that stand under the step.

        Args:
            counted: those of the model and its batch.
            bucket_bytes: those of all buckets of DistributedDataParallel.
        """
        left_bytes = unlike_bytes(self.bytes_of("left"), self.bytes_of("loop")) - sum(self.bytes_of("replaced"))
        return msgspec.structs.replace(
            counted,
            input_bytes=counted.input_bytes + sum(self.bytes_of("given")),
            other_bytes=counted.other_bytes + bucket_bytes + max(left_bytes, 0) + sum(self.bytes_of("held")),
        )


def attribute(written: Written) -> Attributed:
    """Say whose bytes each storage is. O(events).

    Args:
        written: what was written down.
    """
    course = _walk(written)
    made = [*course.made(written.elsewhere)]
    buckets = buckets_among(reversed(made), written.bucket_bytes)  # of the next forward, which has just begun
    ours: dict[int, Whose] = {number: "bucket" if number in buckets else "next" for number, _ in made}
    ours.update(_of_stood(written, [size for number, size in made if number not in buckets], course))
    ours.update(_of_given(written, course, ours))
    ours.update(_of_left(written, course, ours))
    storages = []
    for number, (key, size, born) in enumerate(course.storages):
        whose = ours.get(number, "step" if born <= course.over else "between")
        storages.append(Storage(key, size, whose, born, course.died.get(number, -1)))
    return Attributed(tuple(storages), course.over)


def events_of(written: Written, found: Attributed) -> list[Event]:
    """Return the events of the step alone: what stood is allocated as it begins, and what outlives it is not freed.

    Args:
        written: what was written down.
        found: whose bytes each storage is.
    """
    ours = [each for each in found.storages if (each.whose in STARTS if each.born < 0 else each.whose not in ASIDE)]
    events = [Event("alloc", each.key, each.bytes) for each in ours if each.born < 0]
    aside = {each.born for each in found.storages if each.whose in ASIDE}
    late = {each.died for each in ours if each.died > found.over}  # what is freed later is no operator's workspace
    last = written.events[found.over].key if found.over < len(written.events) else -1
    for place, event in enumerate(written.events):
        follows = event.kind == "mark" and event.key in written.ends and event.key != last  # another end follows
        if place in late or (place <= found.over and place not in aside and not follows):
            events.append(event)
    return events


def alike(stood: Mapping[int, int], made: Iterable[int]) -> set[int]:
    """Return those of `stood` (sizes by number) that have a match in `made`: an equal size, used once."""
    left, found = Counter(made), set[int]()
    for number, size in stood.items():
        if left[size] > 0:
            left[size] -= 1
            found.add(number)
    return found


def unlike_bytes(made: Iterable[int], stood: Iterable[int]) -> int:
    """Return the bytes of the sizes in `made` that have no match in `stood`."""
    return sum((Counter(made) - Counter(stood)).elements())


class _Born(NamedTuple):
    key: int
    bytes: int
    born: int = -1


@dataclass(slots=True)
class _Course:
    """What one walk along the tape finds. Storages have numbers: those that stood come first.

    Attributes:
        storages: all of them.
        over: the event with which the step is over.
        live: numbers of what is allocated, by key; at last as the next step begins.
        died: the event that frees a storage.
        named: numbers of storages that some marker names.
        casts: numbers of those that are cached casts.
        state: numbers of those that are an optimizer's.
        given: what later forwards are given: key, size, and the storage's number, -1 if it was not seen.
    """

    storages: list[_Born]
    over: int
    live: dict[int, int] = field(default_factory=dict)
    died: dict[int, int] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)
    casts: set[int] = field(default_factory=set)
    state: set[int] = field(default_factory=set)
    given: list[tuple[int, int, int]] = field(default_factory=list)

    def numbers(self, keys: Iterable[int]) -> list[int]:
        """Return the numbers of those storages that are allocated."""
        return [self.live[key] for key in keys if key in self.live]

    def add(self, key: int, size: int, born: int = -1) -> int:
        """Add a storage, and return its number."""
        self.storages.append(_Born(key, size, born))
        self.live[key] = len(self.storages) - 1
        return self.live[key]

    def made(self, elsewhere: frozenset[int]) -> Iterator[tuple[int, int]]:
        """Yield number and size of what the loop has made for the next step."""
        for key, number in self.live.items():
            _, size, born = self.storages[number]
            if born > self.over and key not in elsewhere and size > NUMBER_BYTES:
                yield number, size


def _walk(written: Written) -> _Course:
    course = _Course([], _over(written))
    for each in written.stood:
        course.add(each.key, each.bytes)
    for place, event in enumerate(written.events):
        if event.kind == "alloc":
            course.add(event.key, event.bytes, place)
        elif event.kind == "mark":
            _read_marker(course, written, event.key)
        elif (number := course.live.pop(event.key, None)) is not None:
            course.died[number] = place
    return course


def _read_marker(course: _Course, written: Written, marker: int) -> None:
    """Note which storages a marker names; what has a key there may be another storage later."""
    given = written.given.get(marker, {})
    course.given += ((key, size, course.live.get(key, -1)) for key, size in given.items())
    casts = written.casts.get(marker, ())
    for key in casts:
        if key not in course.live:  # it stood before the step, and autocast alone had it
            course.add(key, written.cast_bytes[key])
    course.casts.update(course.numbers(casts))
    course.named.update(course.numbers(written.named.get(marker, ())))
    course.state.update(course.numbers(written.ends.get(marker, ())))


def _over(written: Written) -> int:
    """Return the event with which the step is over: the last end, or the last marker if a forward follows that.

    No backward came to such a forward: its graph is only held.
    """
    last = max(written.ends, default=-1)
    last = max(written.named) if any(number > last for number in written.forwards) else last
    places = (place for place, event in enumerate(written.events) if event.kind == "mark" and event.key == last)
    return next(places, len(written.events))


def _of_stood(written: Written, made: Iterable[int], course: _Course) -> Iterator[tuple[int, Whose]]:
    """Say whose is what stood before the step, given the sizes of what the loop `made` after it."""
    frees_graphs = any(each.goes for each in written.stood if each.held_by == "graph")
    goes = {i: each.bytes for i, each in enumerate(written.stood) if each.goes and each.held_by == "loop"}
    again = alike(goes, made) if written.repeats else goes.keys()
    for number, each in enumerate(written.stood):
        if each.held_by == "loop":
            yield number, "loop" if number in again else "cast" if number in course.casts else "older"
        else:
            yield number, _held_by_others(each, frees_graphs=frees_graphs)
    yield from ((number, "cast") for number in course.casts if number >= len(written.stood) and _stood(course, number))


def _held_by_others(stood: Stood, *, frees_graphs: bool) -> Whose:
    """Say whose is what somebody else than the loop has.

    A loop that holds graphs anew in each step frees an older one in each. Where none goes, one was left by a step that
    failed.
    """
    if stood.held_by == "graph":
        return "graph" if stood.goes else "held" if frees_graphs else "failed"
    if stood.held_by == "model's objects":
        return "replaced" if stood.goes else "held"
    return "model" if stood.held_by == "model" else "gradient"


def _of_given(written: Written, course: _Course, ours: Mapping[int, Whose]) -> dict[int, Whose]:
    """Return what later forwards are given that is neither of the step, nor counted already."""
    own = {each.key for each in written.stood if each.held_by != "loop"}
    found: dict[int, Whose] = {}
    unseen = dict[int, int]()
    for key, size, number in course.given:
        if number < 0 and key not in own:
            unseen[key] = size
        elif ours.get(number) == "older":
            found[number] = "given"
    found.update((course.add(key, size), "given") for key, size in unseen.items())
    return found


def _of_left(written: Written, course: _Course, ours: Mapping[int, Whose]) -> Iterator[tuple[int, Whose]]:
    """Say whose are the storages of the step that are still there as the next one begins, and which later ones use."""

    def of_step(number: int) -> bool:
        return ours.get(number) in STARTS if _stood(course, number) else course.storages[number].born <= course.over

    state = {*filter(of_step, course.state)}
    here = {number: key for key, number in course.live.items() if number in course.named and of_step(number)}
    here = {number: key for number, key in here.items() if number not in state}
    left = {number for number, key in here.items() if key not in written.elsewhere}
    # Buckets come first: they are made before the forward.
    first = sorted(here if written.views else left)
    buckets = buckets_among(((number, course.storages[number].bytes) for number in first), written.bucket_bytes)
    yield from ((number, "left") for number in left - course.casts)  # the next step reads the same casts
    yield from ((number, "bucket") for number in buckets)
    yield from ((number, "optimizer") for number in state)


def _stood(course: _Course, number: int) -> bool:
    return course.storages[number].born < 0
