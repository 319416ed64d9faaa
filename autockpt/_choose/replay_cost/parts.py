"""Replays in parts: what a run holds, restores and costs if it runs again without saving, and then part by part.

    backward   tick of part 3          of part 2                 of part 1
               ├ descent ┤replay of 3┤ ├─ replay ─┤               ├─ replay ─┤
    given to 3 └─────────┴───────────┘ │          │
    given to 2 └─────────┴─────────────┴──────────┘

Parts may go in parts again. A part is priced as any other replay. The run without saving is a descent. It adds its
seconds, what it gives to parts until they are over, and its own peak if that is higher than the last part's.

Source: Griewank and Walther 2000, "Revolve", see `_choose/cuts`. Exact in bytes, as `replay_of` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..._data.cuts import parts_of
from ..._data.hardware.rooflines import HostCosts
from ..._data.plan import Segment
from ..index.profile_index import Index, Members
from .effects import PlannedReplay, boundary_of, changed_buffers, duplicated_in_replay, unread_names
from .inside import with_inner
from .replay_peak import replay_peak
from .replay_seconds import NO_WORK, HostWork, host_work

Cuts = tuple[int, ...]


class Inner(NamedTuple):
    """A run of calls inside another run, with a replay of its own: maybe in parts, maybe with others inside it."""

    members: Members
    cuts: Cuts
    inner: tuple[Inner, ...]


Inners = tuple[Inner, ...]
Known = dict[tuple[Members, Cuts, Inners], PlannedReplay | None]
"""What was worked out before: runs have parts in common."""


def in_parts(index: Index, members: Members, cuts: Cuts, inner: Inners, known: Known) -> PlannedReplay | None:
    """Work out what recomputing a run in parts does, with others inside; None if no part restores anything.

    Args:
        index: of the profile.
        members: the calls.
        cuts: a level for each call; all 0 if the run is replayed at once.
        inner: the runs inside the calls that have replays of their own.
        known: see `Known`.
    """
    key = members, cuts, inner
    if key not in known:
        if any(cuts):
            known[key] = _in_parts(index, members, cuts, inner, known)
        else:
            every = [in_parts(index, *each, known) for each in inner]
            known[key] = with_inner(index, members, [each for each in every if each is not None])
    return known[key]


def _in_parts(index: Index, members: Members, cuts: Cuts, inner: Inners, known: Known) -> PlannedReplay | None:
    """As `in_parts`, for a run that is cut.

    Backward replays the last part first. Before it, the descent runs the calls ahead of that part without saving.
    """
    every: dict[int, PlannedReplay | None] = {}
    for start, stop in parts_of(cuts):
        part = members[start:stop]
        own = tuple(each for each in inner if index.covers(part, each.members[0]))
        # The level of a part's first call says where the part begins. Inside the part it is no cut.
        every[start] = in_parts(index, part, (0, *cuts[start + 1 : stop]), own, known)
    found = {start: part for start, part in every.items() if part is not None}  # backward reads nothing of the others
    if not found:
        return None
    last_start = max(found)
    parts, descended, boundary = [*found.values()], members[:last_start], boundary_of(index, members)
    held, given = _held_and_given(index, members, boundary, parts)
    descent = _descent(index, descended)
    tick = min(part.tick for part in parts)  # as the last part's replay begins, which is the first to run
    additions = [each for part in parts for each in part.additions]
    additions += [(index.bytes_of[tensor], tick, until) for tensor, until in given.items()]
    allocated_at_tick = sum(size for size, since, _ in additions if since == tick)
    peak_bytes = _descent_peak(index, descended, given, boundary) if descended else 0
    # What the descent allocates at most, above what is allocated at that tick anyway.
    additions += [(peak_bytes - allocated_at_tick, tick, tick + 1)] if peak_bytes > allocated_at_tick else []
    return PlannedReplay(
        members=members,
        alone=frozenset(),
        segment=_segment(index, members, cuts, parts, descent),
        stop=index.nodes[members[-1]].stop,
        end=max(part.end for part in parts),
        tick=tick,
        held=tuple(held.items()),
        additions=tuple(additions),
        device_seconds=descent.device_seconds + sum(part.device_seconds for part in parts),
        host=HostWork.sum([descent.host, *(part.host for part in parts)]),
        multiplies=any(part.multiplies for part in parts),
    )


class _Descent(NamedTuple):
    """What the run without saving costs."""

    device_seconds: float = 0.0
    host: HostWork = NO_WORK

    def seconds(self, costs: HostCosts) -> float:
        return self.device_seconds + self.host.saves * costs.save_seconds + self.host.around_seconds(costs)


def _descent(index: Index, descended: Members) -> _Descent:
    if not descended:
        return _Descent()
    saves, end = len(index.saves_of(descended)), index.nodes[descended[-1]].exit
    seconds = sum(index.seconds[member] for member in descended)
    return _Descent(seconds, host_work(index, descended, end, saves))


def _held_and_given(
    index: Index, members: Members, boundary: dict[int, None], parts: Sequence[PlannedReplay]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return until when tensors are held: from forward on, and those that a descent gives to parts."""
    held: dict[int, int] = {}
    given: dict[int, int] = {}
    for part in parts:
        handed = {
            each.tensor
            for member in part.members
            for each in index.nodes[member].arguments
            if each.tensor >= 0 and index.covers(members, index.births[each.tensor]) and index.handed_on(each, members)
        }
        for tensor, until in part.held:
            if tensor in handed:
                given[tensor] = max(given.get(tensor, 0), until)
            if tensor not in handed or tensor in boundary:
                held[tensor] = max(held.get(tensor, 0), until)
    return held, given


def _descent_peak(index: Index, descended: Members, given: dict[int, int], boundary: dict[int, None]) -> int:
    """Return the peak bytes of a descent. What it gives to parts stays allocated."""
    end = index.nodes[descended[-1]].exit
    twice = duplicated_in_replay(index, descended, boundary, frozenset())
    made = {(tensor, -1) for tensor in given if index.covers(descended, index.births[tensor])}
    peak_bytes = replay_peak(index, descended, end, made, frozenset(), [], twice)
    peak_bytes += sum(index.profile.buffer_bytes[name] for name in changed_buffers(index, descended))
    draws = any(index.nodes[member].draws for member in descended)
    return max(peak_bytes, index.profile.generator_bytes) if draws else peak_bytes


def _segment(index: Index, members: Members, cuts: Cuts, parts: Sequence[PlannedReplay], descent: _Descent) -> Segment:
    """Return the segment as a plan names it."""
    seconds = descent.seconds(index.host)
    boundary = boundary_of(index, members)
    return msgspec.structs.replace(
        parts[0].segment,
        calls=index.keys(members),
        buffers=changed_buffers(index, members),
        unread=unread_names(index, members),
        linked=index.keys(m for m in members if any(index.handed_on(a, members) for a in index.nodes[m].arguments)),
        cuts=cuts,
        inner=tuple(each for part in parts for each in part.segment.inner),
        recompute_seconds=seconds + sum(part.segment.recompute_seconds for part in parts),
        freed_bytes=sum(part.segment.freed_bytes for part in parts),
        boundary_bytes=index.total_bytes(boundary),
        kept_bytes=0,
    )
