"""What may wait off the device between forward and backward, and what that costs. No torch.

    boundary   forward   x ─▶ [segment]     x waits elsewhere      the replay gets it back, and runs the calls again
    saved      forward   [call] ─▶ y        what it saves waits    its nodes get that back; nothing runs again

In parts (`shard`) a boundary waits on all ranks that have the same one: each keeps its own part, and they gather the
others' for the replay. Only what ranks were seen to have alike, in parts of one size.

A storage goes once a segment, whatever shares it. What has no graph stays: batches, masks, positions; parameters too.
Where the step waits for the copies, seconds are bytes by rate, both ways, and something for each tensor. Where they run
beside the computing, a storage uses device memory until call `until` ends, and again from that call's backward. Seconds
are then what copies take from the device's memory, and what waiting is left: see `_choose/moves`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from ..._data.offload import Moved, Offload
from ..._data.plan import Segment
from ..._data.profile import Profile
from ..index.profile_index import Index, Members
from ..moves.road import Move, Road, Trip
from ..replay_cost.effects import PlannedReplay, replay_of

LEAST_BYTES = 4096
"""What a call has to move, or it is no candidate: a move has a price of its own."""

SLOWED = 1 / 64
"""Share of a copy's seconds by which it slows what runs beside it: it takes 25 GB/s of some 1,600 of the memory."""

FAR = 6
"""So many ends of calls are tried. The first one is about a block ahead."""

LATER = 16
"""So many later ends are tried for a move that is late."""

ROOMY = 2.0
"""A second way to make a move leaves it this many times the seconds of its copies, since other moves share the link."""


def road_of(profile: Profile, offload: Offload) -> Road | None:
    """Return the link on which tensors go to the host beside the computing; None where the step waits for them.

    It does where they go to a file, and where there are several passes: each read of a tensor is a trip of its own.
    """
    once = not (profile.backward_ticks or profile.late_forwards)
    return Road(profile, offload) if offload.is_host and once else None


def moves_of(
    index: Index, replays: Iterable[PlannedReplay], offload: Offload, road: Road | None
) -> Iterator[PlannedReplay]:
    """Return the ways to move something: the boundaries of replays, and what calls save.

    Source: boundaries that wait elsewhere are FairScale's ``offload_to_cpu``, saved tensors torch's ``save_on_cpu``;
    beside the computing as in Rhu et al. 2016, "vDNN". Exact in bytes; O(replays + calls × what they save).
    """
    late = _written_later(index)
    calls = () if offload.is_shard else index.call_nodes  # of what calls save nothing is known to be alike on ranks
    for each in replays:
        alone = len(each.members) == 1 and not each.alone
        yield from _ways(index, "boundary", each.members, each, offload, road if alone else None)
    for node in calls:
        if not any(index.covers((node,), saver) and index.covers((node,), writer) for saver, writer in late):
            yield from _ways(index, "saved", (node,), None, offload, road)


def _ways(
    index: Index, what: Moved, members: Members, stays: PlannedReplay | None, offload: Offload, road: Road | None
) -> Iterator[PlannedReplay]:
    """Yield a move for which the step waits, and variants of it whose copies overlap with compute.

    One has the first deadline that leaves time for its copies, another one the first that leaves `ROOMY` times as much.
    If both have the same deadline, there is one variant.
    """
    found = move_of(index, what, members, stays, offload)
    if found is None:
        return
    moved = priced(index, *found, offload)
    yield moved
    if road is None:
        return
    trips, first = moved.move.trips if moved.move is not None else (), members[0]
    call = index.call_numbers[first if not index.is_function(first) else index.nodes[first].parent]
    wanted = [trips, tuple(replace(trip, bytes=int(ROOMY * trip.bytes)) for trip in trips)]
    for until in road.ends.of(call)[:FAR]:
        left = len(wanted)
        while wanted and road.has_time(Move(trips=wanted[0], until=until)):
            del wanted[0]
        if len(wanted) < left:
            yield priced(index, *found, offload, road, until)


def later_ends(
    index: Index, replay: PlannedReplay, offload: Offload | None, road: Road | None
) -> Iterator[PlannedReplay]:
    """Return a move beside the computing with later ends, the next one first."""
    if offload is None or road is None or replay.move is None or replay.move.until is None:
        return
    what, members = replay.segment.offload, replay.members
    stays = replay_of(index, members, replay.alone, replay.whole) if replay.segment.runs_again else None
    gone = road.ends.gone[replay.move.until]
    later = [call for call in road.ends.of(index.call_numbers[members[0]]) if road.ends.gone[call] > gone]
    found = move_of(index, what, members, stays, offload)
    yield from (priced(index, *found, offload, road, until) for until in later[:LATER] if found is not None)


def move_of(
    index: Index, what: Moved | None, members: Members, stays: PlannedReplay | None, offload: Offload
) -> tuple[PlannedReplay, list[Trip]] | None:
    """Return what it is to move something of some calls, but for its price, and what leaves; None where nothing does.

    Args:
        index: the recorded step.
        what: that; None for nothing.
        members: the calls.
        stays: their replay where nothing is moved; None where none runs.
        offload: where it waits.
    """
    if what == "saved":
        return _saved_of(index, members)
    return None if stays is None or what is None else _boundary_of(index, stays, offload)


def _boundary_of(index: Index, replay: PlannedReplay, offload: Offload) -> tuple[PlannedReplay, list[Trip]] | None:
    """Return a replay whose boundary waits elsewhere until it runs; None where there is nothing to move."""
    graphs = _with_graph(index, replay.members)
    if offload.is_shard and not _in_parts(index, offload, graphs.intersection(tensor for tensor, _ in replay.held)):
        return None
    packed = index.nodes[replay.members[0]].enter
    trips = [
        Trip(tensor=tensor, bytes=index.bytes_of[tensor], packed=packed, read=replay.tick, release=release)
        for tensor, release in replay.held
        if tensor in graphs
    ]
    size = sum(trip.bytes - offload.staying_bytes(trip.bytes) for trip in trips)
    if size < LEAST_BYTES:
        return None
    moved = {trip.tensor for trip in trips}
    segment = msgspec.structs.replace(
        replay.segment, offload="boundary", moved_bytes=size, boundary_bytes=replay.segment.boundary_bytes - size
    )
    held = tuple((tensor, release) for tensor, release in replay.held if tensor not in moved)
    return replace(replay, segment=segment, held=held), trips


def _saved_of(index: Index, members: Members) -> tuple[PlannedReplay, list[Trip]] | None:
    """Return what it is to move what a module call saves; None where it saves too little, or not all of it may wait."""
    (node,) = members
    parent = index.nodes[node].parent
    if parent < 0 or index.reason(members):
        return None
    held, trips = _lifetimes(index, members)
    size, ticks = sum(trip.bytes for trip in trips), index.profile.ticks
    if size < LEAST_BYTES or max(trip.read for trip in trips) >= ticks:  # what no backward reads is let go of unread
        return None
    segment = Segment(
        calls=index.keys(members),
        parent=index.nodes[parent].key,
        buffers=(),
        offload="saved",
        freed_bytes=size,
        moved_bytes=size,
        kept_bytes=index.total_bytes(held),
    )
    stays = PlannedReplay(
        members=members,
        alone=frozenset(),
        segment=segment,
        stop=index.nodes[node].stop,
        end=0,
        tick=min(trip.read for trip in trips),
        held=tuple(held.items()),
        additions=(),
        multiplies=False,
    )
    return stays, trips


def priced(
    index: Index,
    stays: PlannedReplay,
    trips: Sequence[Trip],
    offload: Offload,
    road: Road | None = None,
    until: int | None = None,
) -> PlannedReplay:
    """Return what it is that some storages leave the device and come back, where nothing but these is missing yet.

    The step waits for them where there is no `until`, the call that copies may take as long as.
    """
    move = Move(trips=tuple(sorted(trips, key=lambda trip: trip.packed)), until=until)
    size = sum(trip.bytes for trip in trips)
    waits = offload.seconds(size, len(trips))
    held, begins, key = dict(stays.held), {trip: trip.read for trip in trips}, None
    if until is not None and road is not None:
        waits, key = 0.0, index.profile.calls[until].key
        begins = {trip: road.fetched(move, trip) for trip in trips}
        for trip in trips:
            held[trip.tensor] = max(held.get(trip.tensor, 0), road.gone(move, trip))
    seconds = waits or SLOWED * offload.seconds(size, 0) + len(trips) * index.host.save_seconds
    segment = msgspec.structs.replace(
        stays.segment, until=key, recompute_seconds=stays.segment.recompute_seconds + seconds
    )
    parts = ((offload.staying_bytes(trip.bytes), trip.packed, trip.release) for trip in trips if offload.is_shard)
    return replace(
        stays,
        segment=segment,
        held=tuple(held.items()),
        additions=(*stays.additions, *((trip.bytes, begins[trip], trip.release) for trip in trips), *parts),
        move=move,
        waits_seconds=waits,
    )


def _in_parts(index: Index, offload: Offload, tensors: Collection[int]) -> bool:
    """Whether ranks were seen to have tensors alike, of which each can keep a part that is as large as the others'."""
    copies = index.profile.copies
    if copies is None or copies.ranks != offload.ranks:
        return False
    unequal = any(index.bytes_of[tensor] % offload.ranks for tensor in tensors)
    return not unequal and set(copies.tensors).issuperset(tensors)


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


def _lifetimes(index: Index, members: Members) -> tuple[dict[int, int], list[Trip]]:
    """Return of what calls save until when it is held where it stays, and the trips of what is moved."""
    saves, stays = index.profile.saves, _arguments(index, members) - _with_graph(index, members)
    held: dict[int, int] = {}
    found: dict[int, Trip] = {}
    for i in index.saves_of(members):
        tensor, packed, read, release = saves.tensor[i], saves.pack[i], saves.unpack[i], saves.release[i]
        if tensor in stays:
            held[tensor] = max(held.get(tensor, 0), release)
        elif tensor >= 0:
            if (known := found.get(tensor)) is not None:
                packed, read, release = min(known.packed, packed), min(known.read, read), max(known.release, release)
            size = index.bytes_of[tensor]
            found[tensor] = Trip(tensor=tensor, bytes=size, packed=packed, read=read, release=release)
    held.pop(-1, None)
    return held, list(found.values())


def _arguments(index: Index, members: Members) -> set[int]:
    return {given.tensor for member in members for given in index.nodes[member].arguments}


def _with_graph(index: Index, members: Members) -> set[int]:
    """Tensors of this step among the arguments of some calls through which gradients flow, in every way they come."""
    every = [given for member in members for given in index.nodes[member].arguments if given.tensor >= 0]
    return {given.tensor for given in every if given.graph} - {given.tensor for given in every if not given.graph}
