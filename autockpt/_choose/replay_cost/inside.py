"""What a replay holds, restores and costs if calls inside it have replays of their own, called inner replays.

    backward   of the block's end      of the calls inside         of the block's begin
               ├ replay of the block ┤ ├─ inner replay ──┤
    own        └─────────────────────┴─┴─────────────────┴──────── saved by the rest of the block
    given      └─────────────────────┴───────────────────┘         inputs of the calls inside

Exact in bytes, as `replay_of` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ..._data.plan import Segment
from ..index.profile_index import Index, Members
from .effects import PlannedReplay, boundary_of, changed_buffers, duplicated_in_replay, replay_of, restored
from .replay_peak import replay_peak
from .replay_seconds import HostWork


def with_inner(index: Index, members: Members, inner: Sequence[PlannedReplay]) -> PlannedReplay | None:
    """Work out what recomputing a run holds, restores and costs with inner replays.

    The caller's code may compute something from the result of one call of the run, and give it to another call of the
    run. Then the run is priced as if one replay restored everything.
    """
    whole = replay_of(index, members)
    if whole is None or not inner:
        return whole
    whole = _with_costs(index, whole, inner)
    saves, inside = index.profile.saves, index.saves_of(members)
    later = {i for each in inner for i in index.saves_of(each.members)}
    alive = [i for i in inside if saves.release[i] > whole.tick]
    boundary = boundary_of(index, members)
    if not alive or duplicated_in_replay(index, members, boundary, frozenset()):
        return whole
    end, needed = max(saves.pack[i] for i in alive), {i: saves.release[i] for i in alive if i not in later}
    held, given = _held_and_given(index, members, inner, dict.fromkeys(boundary, whole.tick + 1))
    until = restored(index, members, needed, frozenset(), held, {})
    for tensor, tick in given.items():
        until[tensor, -1] = max(until.get((tensor, -1), 0), tick)
    dead = [i for i in inside if i not in needed and i not in later]
    peak_bytes = replay_peak(index, members, end, until, frozenset(), dead, {})
    if any(index.nodes[member].draws for member in members):
        peak_bytes = max(peak_bytes, index.profile.generator_bytes)
    return replace(
        whole,
        held=tuple(held.items()),
        additions=_additions(index, whole, inner, peak_bytes, until),
    )


def _with_costs(index: Index, whole: PlannedReplay, inner: Sequence[PlannedReplay]) -> PlannedReplay:
    """Return a replay as a plan names it, with what the inner ones take of the host and the device."""
    within = HostWork(members=sum(len(each.members) for each in inner))
    return replace(
        whole,
        segment=_segment(index, whole.segment, inner),
        device_seconds=whole.device_seconds + sum(each.device_seconds for each in inner),
        host=HostWork.sum([whole.host, within, *(each.host for each in inner)]),
    )


def _segment(index: Index, whole: Segment, inner: Sequence[PlannedReplay]) -> Segment:
    """Return the segment as a plan names it, with the inner ones and their seconds."""
    seconds = sum(each.segment.recompute_seconds for each in inner)
    seconds += sum(len(each.members) for each in inner) * index.host.member_seconds
    return msgspec.structs.replace(
        whole,
        inner=tuple(each.segment for each in inner),
        recompute_seconds=whole.recompute_seconds + seconds,
    )


def _held_and_given(
    index: Index, members: Members, inner: Sequence[PlannedReplay], held: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return until when tensors are held: from forward on, and those that the replay makes for inner replays."""
    given: dict[int, int] = {}
    for each in inner:
        for tensor, tick in each.held:
            into = given if tensor not in held and index.covers(members, index.births[tensor]) else held
            into[tensor] = max(into.get(tensor, 0), tick)
    return held, given


def _additions(
    index: Index,
    whole: PlannedReplay,
    inner: Sequence[PlannedReplay],
    peak_bytes: int,
    until: dict[tuple[int, int], int],
) -> tuple[tuple[int, int, int], ...]:
    """Return the allocations that this replay and the inner ones add; inner ones begin with it, not in forward."""
    tick = whole.tick
    additions = [each for each in whole.additions if each[1] < tick]  # copies of buffers, held from forward on
    copies = [(size, over) for each in inner for size, since, over in each.additions if since < tick]
    size = sum(index.profile.buffer_bytes[name] for name in changed_buffers(index, whole.members))
    # If backward first reads what an inner replay restores, that one runs right after this one.
    there = sum(size for each in inner for size, since, _ in each.additions if since == tick)
    stands = sum(index.bytes_of[tensor] for tensor, _ in until) + 2 * sum(size for size, _ in copies)
    high = max(size + peak_bytes + sum(size for size, _ in copies), stands + there if there else 0)
    additions.append((high - there, tick, tick + 1))
    additions += [(index.bytes_of[tensor], tick + 1, over) for (tensor, _), over in until.items()]
    additions += [(2 * size, tick + 1, over) for size, over in copies]  # doubles of modules that ran have copies too
    return (*additions, *(one for each in inner for one in each.additions if one[1] >= tick))
