"""Replays in parts: what a run holds, restores and costs that is run again without saving, and then part by part.

    backward   tick of part 3          of part 2                 of part 1
               ├ descent ┤replay of 3┤ ├─ replay ─┤               ├─ replay ─┤
    given to 3 └─────────┴───────────┘ │          │
    given to 2 └─────────┴─────────────┴──────────┘

Parts may go in parts again. A part is priced as any other replay; a descent adds its seconds, what it gives to parts
until they are over, and its own peak, where that is higher than the last part's.

Source: Griewank and Walther 2000, "Revolve", see `_cuts`. Exact in bytes, as `replay_of` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ..._cuts.offers import offers
from ..._data.cuts import parts_of
from ..._data.plan import Segment
from ..._index.profile_index import Index, Members
from ...solvers.deadline import Deadline
from .effects import PlannedReplay, boundary_of, changed_buffers, replay_of, standing_twice, unread_names
from .replay_peak import replay_peak
from .replay_seconds import host_seconds
from .runs import rows_of

Cuts = tuple[int, ...]
Known = dict[tuple[Members, Cuts], PlannedReplay | None]
"""What was worked out before: runs have parts in common."""

SPEAKS = ("c10d.", "_c10d_functional.")
"""How the names of operators begin that run on all ranks together."""


def replays_in_parts(index: Index, deadline: Deadline) -> Iterator[PlannedReplay]:
    """Yield runs of siblings in parts of one call that saves something, with the functions before it; see `offers`.

    None where a backward keeps its graph, for which all is replayed at once, or where replays run collectives.
    """
    if any(index.passes.keeping) or any(name.startswith(SPEAKS) for name in index.profile.ops.name):
        return
    known: Known = {}
    for row in rows_of(index):
        for groups in _stretches(index, row):
            for first, stop, levels in offers(len(groups)):
                if deadline.passed:
                    return
                run = groups[first:stop]
                members = tuple(node for group in run for node in group)
                each = (
                    level if i == 0 else 0 for group, level in zip(run, levels, strict=True) for i in range(len(group))
                )
                replay = in_parts(index, members, tuple(each), known)
                if replay is not None:
                    yield replay


def _stretches(index: Index, row: Sequence[int]) -> Iterator[list[Members]]:
    """Yield groups of siblings side by side, of which each can be replayed by itself and saves what backward reads."""
    groups: list[Members] = []
    begun: Members = ()
    for node in row:
        begun = (*begun, node)
        if node in index.refused or node in index.lonely:
            yield groups
            groups, begun = [], ()
        elif index.is_function(node) or not index.saves_of((node,)):
            continue
        elif index.reason(begun):  # it changes in place what the group before returned
            merged = (*groups.pop(), *begun) if groups else ()
            if merged and not index.reason(merged):
                groups.append(merged)
            else:
                yield groups
                groups = []
            begun = ()
        elif replay_of(index, begun) is not None:
            groups.append(begun)
            begun = ()
    yield groups


def in_parts(index: Index, members: Members, cuts: Cuts, known: Known) -> PlannedReplay | None:
    """Work out what recomputing a run in parts holds, restores and costs; None where no part restores anything."""
    key = members, cuts
    if key not in known:
        known[key] = _in_parts(index, members, cuts, known) if any(cuts) else replay_of(index, members)
    return known[key]


def _in_parts(index: Index, members: Members, cuts: Cuts, known: Known) -> PlannedReplay | None:
    every = {
        start: in_parts(index, members[start:stop], (0, *cuts[start + 1 : stop]), known)
        for start, stop in parts_of(cuts)
    }
    found = {start: part for start, part in every.items() if part is not None}  # of the others backward reads nothing
    if not found:
        return None
    parts, descended, boundary = [*found.values()], members[: max(found)], boundary_of(index, members)
    held, given = _held_and_given(index, members, boundary, parts)
    tick = min(part.tick for part in parts)
    additions = [each for part in parts for each in part.additions]
    additions += [(index.bytes_of[tensor], tick, until) for tensor, until in given.items()]
    there = sum(size for size, since, _ in additions if since == tick)
    peak_bytes = _descent_peak(index, descended, given, boundary) if descended else 0
    additions += [(peak_bytes - there, tick, tick + 1)] if peak_bytes > there else []
    return PlannedReplay(
        members=members,
        alone=frozenset(),
        segment=_segment(index, members, cuts, parts, descended),
        stop=index.nodes[members[-1]].stop,
        tick=tick,
        held=tuple(held.items()),
        additions=tuple(additions),
        multiplies=any(part.multiplies for part in parts),
    )


def _held_and_given(
    index: Index, members: Members, boundary: dict[int, None], parts: Sequence[PlannedReplay]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return until when tensors are held from forward on, and those that a descent gives to parts."""
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
    """Highest level of what a descent bears: what parts are given stays."""
    end = index.nodes[descended[-1]].exit
    twice = standing_twice(index, descended, boundary, frozenset())
    made = {(tensor, -1) for tensor in given if index.covers(descended, index.births[tensor])}
    peak_bytes = replay_peak(index, descended, end, made, frozenset(), [], twice)
    peak_bytes += sum(index.profile.buffer_bytes[name] for name in changed_buffers(index, descended))
    draws = any(index.nodes[member].draws for member in descended)
    return max(peak_bytes, index.profile.generator_bytes) if draws else peak_bytes


def _segment(index: Index, members: Members, cuts: Cuts, parts: Sequence[PlannedReplay], descended: Members) -> Segment:
    """Return what is recomputed as a plan names it."""
    seconds = sum(index.seconds[member] for member in descended)
    seconds += len(index.saves_of(descended)) * index.host.save_seconds
    seconds += host_seconds(index, descended) if descended else 0.0
    boundary = boundary_of(index, members)
    return msgspec.structs.replace(
        parts[0].segment,
        calls=index.keys(members),
        buffers=changed_buffers(index, members),
        unread=unread_names(index, members),
        linked=index.keys(m for m in members if any(index.handed_on(a, members) for a in index.nodes[m].arguments)),
        cuts=cuts,
        recompute_seconds=seconds + sum(part.segment.recompute_seconds for part in parts),
        freed_bytes=sum(part.segment.freed_bytes for part in parts),
        boundary_bytes=index.total_bytes(boundary),
        kept_bytes=0,
    )
