"""What may wait off the device between forward and backward, and what that costs. No torch.

    boundary   forward   x ─▶ [segment]     x waits elsewhere      the replay gets it back, and runs the calls again
    saved      forward   [call] ─▶ y        what it saves waits    its nodes get that back; nothing runs again

Moves are over when they return: seconds are bytes by rate, both ways, and something for each tensor. A storage goes
once a segment, whatever shares it. What has no graph stays: batches, masks, positions; parameters too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from ..._data.offload import Offload
from ..._data.plan import Segment
from .effects import PlannedReplay
from .profile_index import Index, Members

LEAST_BYTES = 4096
"""What a call has to move, or it is no candidate: a move has a price of its own."""


def moves_of(index: Index, replays: Iterable[PlannedReplay], offload: Offload) -> Iterator[PlannedReplay]:
    """Return the ways to move something: the boundaries of replays, and what calls save.

    Source: boundaries that wait elsewhere are FairScale's ``offload_to_cpu``, saved tensors torch's ``save_on_cpu``.
    Exact in bytes; O(replays + calls × what they save).
    """
    for each in replays:
        moved = move_boundary(index, each, offload)
        if moved is not None:
            yield moved
    late = _written_later(index)
    for node in index.call_nodes:
        if not any(index.covers((node,), saver) and index.covers((node,), writer) for saver, writer in late):
            found = move_saved(index, node, offload)
            if found is not None:
                yield found


def move_boundary(index: Index, replay: PlannedReplay, offload: Offload) -> PlannedReplay | None:
    """Return a replay whose boundary waits elsewhere until it runs; None where there is nothing to move."""
    graphs = _with_graph(index, replay.members)
    moved = {tensor: until for tensor, until in replay.held if tensor in graphs}
    size = index.total_bytes(moved)
    if size < LEAST_BYTES:
        return None
    segment = msgspec.structs.replace(
        replay.segment,
        offload="boundary",
        moved_bytes=size,
        boundary_bytes=replay.segment.boundary_bytes - size,
        recompute_seconds=replay.segment.recompute_seconds + offload.seconds(size, len(moved)),
    )
    return replace(
        replay,
        segment=segment,
        held=tuple((tensor, until) for tensor, until in replay.held if tensor not in moved),
        additions=(*replay.additions, *((index.bytes_of[t], replay.tick, until) for t, until in moved.items())),
    )


def move_saved(index: Index, node: int, offload: Offload) -> PlannedReplay | None:
    """Return what it is to move what a module call saves; None where it saves too little, or not all of it may wait."""
    members = (node,)
    parent = index.nodes[node].parent
    if parent < 0 or index.reason(members):
        return None
    ticks = index.profile.ticks
    held, since, until = _lifetimes(index, members)
    size = index.total_bytes(until)
    if size < LEAST_BYTES or max(since.values(), default=ticks) >= ticks:  # what no backward reads is let go of unread
        return None
    segment = Segment(
        calls=index.keys(members),
        parent=index.nodes[parent].key,
        buffers=(),
        offload="saved",
        recompute_seconds=offload.seconds(size, len(until)),
        freed_bytes=size,
        moved_bytes=size,
        kept_bytes=index.total_bytes(held),
    )
    return PlannedReplay(
        members=members,
        alone=frozenset(),
        segment=segment,
        stop=index.nodes[node].stop,
        tick=min(since.values()),
        held=tuple(held.items()),
        additions=tuple((index.bytes_of[tensor], since[tensor], release) for tensor, release in until.items()),
        multiplies=False,
    )


def _written_later(index: Index) -> set[tuple[int, int]]:
    """Return who saves a tensor, and who writes into its storage after that.

    They count changes each by themselves, as the chunks in a recurrent cell: such a storage would go several times.
    """
    saves, ops = index.profile.saves, index.profile.ops
    first: dict[int, tuple[int, int]] = {}
    for tensor, pack, node in zip(saves.tensor, saves.pack, index.save_nodes, strict=True):
        first[tensor] = min(first.get(tensor, (pack, node)), (pack, node))
    return {
        (first[tensor][1], node)
        for node, start, written in zip(index.op_nodes, ops.start, ops.writes, strict=True)
        for tensor in written
        if tensor in first and first[tensor][0] < start
    }


def _lifetimes(index: Index, members: Members) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """Return of what calls save until when it is held where it stays, and from when until when where it is moved."""
    saves, stays = index.profile.saves, _arguments(index, members) - _with_graph(index, members)
    held: dict[int, int] = {}
    since: dict[int, int] = {}
    until: dict[int, int] = {}
    for i in index.saves_of(members):
        tensor = saves.tensor[i]
        if tensor in stays:
            held[tensor] = max(held.get(tensor, 0), saves.release[i])
        elif tensor >= 0:
            since[tensor] = min(since.get(tensor, index.profile.ticks), saves.unpack[i])
            until[tensor] = max(until.get(tensor, 0), saves.release[i])
    held.pop(-1, None)
    return held, since, until


def _arguments(index: Index, members: Members) -> set[int]:
    return {given.tensor for member in members for given in index.nodes[member].arguments}


def _with_graph(index: Index, members: Members) -> set[int]:
    """Tensors of this step among the arguments of some calls through which gradients flow, in every way they come."""
    every = [given for member in members for given in index.nodes[member].arguments if given.tensor >= 0]
    return {given.tensor for given in every if given.graph} - {given.tensor for given in every if not given.graph}
