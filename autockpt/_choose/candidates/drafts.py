"""One candidate in ticks: what recomputing a run of calls holds, restores and costs.

forward                                        backward
├── h.3 ──────────┤                            unpack          releases
x │ a   b   c   y │                            │               │ │   │
▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒┤             boundary x: through the replay, saved parts longer
  ├───┤                                        ┌replay┐───────┤ │   │   a, b, c: restored by the replay,
      ├───┤                                    │ peak │─────────┤   │   then dying one by one
          ├───┤                                └──────┘─────────────┤

Where a unit is kept, what it made and saved stays from forward on instead, as the boundary does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from .book import Book
from .glue import is_glue
from .replay_peak import replay_peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What a replay of a call leaves alone: units that are kept or skipped. No bytes and no seconds.

    Attributes:
        given: tensors that came into the unit of each torch function that does not run again, by its index: what
            it saves of them the replay fills in.
        calls: ``[start, stop)`` of module calls that do not run again.
        stashed: tensors that the replay is handed.
        keep: keys of the units that the replay does not run again, and whose results it reads.
        skip: keys of the units that it does not run again, and whose results nothing in it reads.
        seen: how many functions and calls the function modes meet that leave units alone.
    """

    given: dict[int, frozenset[int]] = field(default_factory=dict)
    calls: tuple[tuple[int, int], ...] = ()
    stashed: frozenset[int] = frozenset()
    keep: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    seen: int = 0


NOTHING_IDLE = Idle()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a candidate stands for in the profile.

    Attributes:
        members: indices of the calls, siblings in forward order.
        idle: the units inside that a replay does not run again.
        freed_bytes: bytes of the tensors that the calls save and a replay brings back.
        boundary_bytes: bytes of the tensors that must stay alive for the replay.
        buffers: qualified names of the buffers that the calls change.
        kept_bytes: bytes that idle units leave alive, boundary not counted.
    """

    members: tuple[int, ...]
    idle: Idle
    freed_bytes: int
    boundary_bytes: int
    buffers: tuple[str, ...]
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A candidate before the clock is cut into steps.

    Attributes:
        run: what it stands for.
        start: first call that it covers.
        stop: one past the last.
        seconds: what it costs, host seconds included.
        replay: tick at which its replay runs.
        replay_bytes: highest level of what the replay bears.
        restored: for each restored tensor, the tick until which it lives and its bytes.
        held: for each tensor that is held from forward on, the tick until which it is.
        snapshot_bytes: buffers kept from the beginning of forward to the replay.
    """

    run: Run
    start: int
    stop: int
    seconds: float
    replay: int
    replay_bytes: int
    restored: tuple[tuple[int, int], ...]
    held: tuple[tuple[int, int], ...]
    snapshot_bytes: int


def make_draft(book: Book, members: tuple[int, ...], idle: Idle = NOTHING_IDLE) -> Draft | None:
    """Draft a run that is worth offering; arguments as for `replayed_draft`, None where it would free nothing."""
    draft = replayed_draft(book, members, idle)
    return draft if draft is not None and draft.restored else None


def replayed_draft(book: Book, members: tuple[int, ...], idle: Idle = NOTHING_IDLE) -> Draft | None:
    """Work out what recomputing a run holds, restores and costs, also where it restores nothing.

    Args:
        book: the profile.
        members: the calls of the run.
        idle: what the replay does not run again.

    Returns:
        The draft; None where backward never reads what the run saves, so that no replay runs.
    """
    profile, calls, saves = book.profile, book.profile.calls, book.profile.saves
    start, stop = members[0], calls[members[-1]].stop
    inside = book.saves_of(start, stop)
    # What a unit saves stays with autograd, but for what it was given.
    slots = [
        i for i in inside if saves.function[i] not in idle.given or saves.tensor[i] in idle.given[saves.function[i]]
    ]
    replay = min((saves.unpack[i] for i in slots), default=profile.ticks)
    if replay >= profile.ticks:
        return None
    needed = [i for i in slots if saves.release[i] > replay]
    last = max(needed, key=lambda i: saves.pack[i])
    kept = _born_idle(book, members, idle)
    until: dict[tuple[int, int], int] = {}  # by tensor, and by the function that makes a cast of its own
    boundary = book.boundary(members)
    held = dict.fromkeys([*boundary, *idle.stashed], replay + 1)
    left = set(inside).difference(slots)  # stays with autograd: what a unit made, or read as an attribute
    for i in [*needed, *left]:
        tensor = saves.tensor[i]
        if tensor < 0:
            continue
        # Every function of a replay casts weights anew under autocast, also those that forward's cache spared it.
        cast = saves.function[i] if tensor in book.casts and book.birth_function[tensor] != saves.function[i] else -1
        there = cast < 0 and (tensor in held or tensor in kept)
        if i in left or there:
            held[tensor] = max(held.get(tensor, 0), saves.release[i])
        # What the caller's code made of a member's result may be handed on beside it: then both are there at once.
        if i not in left and (not there or (tensor in boundary and start <= book.birth_call[tensor] < stop)):
            until[tensor, cast] = max(until.get((tensor, cast), 0), saves.release[i])
    dead = [i for i in inside if saves.release[i] <= replay and saves.function[i] not in idle.given]
    buffers = tuple(dict.fromkeys(name for call in calls[start:stop] for name in call.buffers))
    snapshot = sum(profile.buffer_bytes[name] for name in buffers)
    draws = any(calls[member].draws for member in members)
    state = profile.generator_bytes if draws else 0  # a generator's state is read before the replay and set after it
    end = saves.pack[last]
    # What a unit saves is packed as well, though no replay makes it again.
    packed = sum(saves.pack[i] <= end or saves.function[i] in idle.given for i in inside)
    return Draft(
        run=Run(
            members=members,
            idle=idle,
            freed_bytes=_bytes(book, {tensor for tensor, _ in until}),
            boundary_bytes=_bytes(book, boundary),
            buffers=buffers,
            kept_bytes=_bytes(book, held.keys() - boundary.keys()),
        ),
        start=start,
        stop=stop,
        seconds=_seconds(book, members, last, idle)
        + book.host.replay_seconds
        + packed * book.host.save_seconds
        + _idle_seconds(book, idle)
        + _joining_seconds(book, members),
        replay=replay,
        replay_bytes=snapshot + max(state, replay_peak(book, members, end, set(until), kept, dead)),
        restored=tuple((tick, int(book.bytes[tensor])) for (tensor, _), tick in until.items()),
        held=tuple(held.items()),
        snapshot_bytes=snapshot,
    )


def _born_idle(book: Book, members: tuple[int, ...], idle: Idle) -> frozenset[int]:
    """Tensors that forward bore in what the replay does not run again."""
    if not idle.given:
        return frozenset()
    calls = book.profile.calls
    low, high = np.searchsorted(book.birth, (calls[members[0]].enter, calls[members[-1]].exit))
    function, call = book.birth_function[low:high], book.birth_call[low:high]
    born = np.array([f in idle.given for f in function.tolist()], dtype=np.bool_)
    for start, stop in idle.calls:
        born |= (call >= start) & (call < stop)
    return frozenset((low + np.flatnonzero(born)).tolist())


def _seconds(book: Book, members: tuple[int, ...], last: int, idle: Idle) -> float:
    """Forward seconds of what runs again, up to the save `last`.

    Besides torch functions a forward runs the Python around them, which is shared out evenly among them.
    """
    whole = book.seconds(members, last)
    if not idle.given:
        return whole
    functions, end = book.profile.functions, book.profile.saves.pack[last]
    own = [f for member in members for f in book.functions_of(member) if book.begins(f, end)]
    again = [f for f in own if f not in idle.given]
    around = max(whole - sum(functions.seconds[f] for f in own), 0.0)
    return sum(functions.seconds[f] for f in again) + around * len(again) / max(len(own), 1)


def _idle_seconds(book: Book, idle: Idle) -> float:
    """Host seconds of the units that are left alone, and of the mode that does so."""
    units = len(idle.keep) + len(idle.skip)
    return units * book.host.kept_seconds + idle.seen * book.host.mode_seconds


def _joining_seconds(book: Book, members: tuple[int, ...]) -> float:
    """Host seconds of each call but the first; of each member that is glue, and of the mode that lets it be one."""
    profile = book.profile
    glue = [member for member in members if is_glue(profile.calls[member])]
    calls_seconds = max(len(members) - len(glue) - 1, 0) * book.host.member_seconds
    if not glue:
        return calls_seconds
    seen = book.seen(profile.calls[glue[0]].parent)
    return calls_seconds + len(glue) * book.host.kept_seconds + seen * book.host.mode_seconds


def _bytes(book: Book, tensors: Iterable[int]) -> int:
    return int(sum(book.bytes[tensor] for tensor in tensors))
