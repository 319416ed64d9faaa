"""What recomputing a run of calls holds, restores and costs, in ticks.

forward                                        backward
├── h.3 ──────────┤                            unpack          releases
x │ a   b   c   y │                            │               │ │   │
▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒┤             boundary x: through the replay, saved parts longer
  ├───┤                                        ┌replay┐───────┤ │   │   a, b, c: restored by the replay,
      ├───┤                                    │ peak │─────────┤   │   then freed one by one
          ├───┤                                └──────┘─────────────┤

If a function is kept, what it made and saved stays from forward on instead, as the boundary does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..._data.plan import Segment
from ..index.profile_index import Index, Members
from ..moves.road import Move
from .copies import Copies, copies_of
from .replay_peak import replay_peak
from .replay_seconds import NO_WORK, HostWork, device_seconds, host_work
from .units import NOTHING, UnitsLeft, left_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplay:
    """One way to recompute a run of calls, and what comes of it.

    Attributes:
        members: the calls, by node.
        alone: torch functions inside that do not run again, by node.
        whole: the units that are module calls, by node. All of their functions are `alone`.
        segment: the same by names, with what it costs, host seconds included.
        stop: one past the last node that it covers.
        end: tick of forward up to which it runs again.
        tick: when it first runs. If it never runs, when it could no longer run.
        held: the tensors that are held from forward on, each with the tick until which it is held.
        additions: bytes that are allocated only because of it, from which tick until which: its own peak, what it
            restores, and copies of buffers. The copies exist from where forward begins the run.
        multiplies: whether something that multiplies matrices or convolves runs again.
        move: what goes over the link to the host meanwhile, if anything does.
        waits_seconds: the part of the segment's seconds in which the step would wait for the link to the host, if
            nothing else went over it.
        device_seconds: the part of them in which the device computes, or brings back what is away.
        host: what it gives the host to do.
    """

    members: Members
    alone: frozenset[int]
    whole: frozenset[int] = frozenset()
    segment: Segment
    stop: int
    end: int
    tick: int
    held: tuple[tuple[int, int], ...]
    additions: tuple[tuple[int, int, int], ...]
    multiplies: bool
    move: Move | None = None
    waits_seconds: float = 0.0
    device_seconds: float = 0.0
    host: HostWork = NO_WORK


def replay_of(
    index: Index, members: Members, idle: Collection[int] = (), whole: Collection[int] | None = None
) -> PlannedReplay | None:
    """Work out what recomputing a run holds, restores and costs if the `idle` torch functions inside do not run again.

    If backward never reads what the run saves, no replay runs, and nothing is restored. Return None then if there are
    idle functions, or if what the run saves outlives the step. For `whole` see `left_alone`.
    """
    saves, nodes = index.profile.saves, index.save_nodes
    left = left_alone(index, members, idle, whole) if idle else NOTHING
    alone = left.functions
    inside = index.saves_of(members)
    # What a unit saves stays with autograd, except for what the unit was given.
    slots = [i for i in inside if nodes[i] not in alone or saves.tensor[i] in left.given[nodes[i]]]
    fills = index.passes.fills(slots)
    if not fills:
        return None if idle else _never_read(index, members, slots)
    boundary = boundary_of(index, members)
    over = index.passes.held_until(slots, max(fills))
    held = dict.fromkeys([*boundary, *left.results], over)
    twice = duplicated_in_replay(index, members, held, alone)
    buffers = changed_buffers(index, members)
    snapshot = sum(index.profile.buffer_bytes[name] for name in buffers)
    replays = [_one_replay(index, members, tick, needed, left, held, twice, snapshot) for tick, needed in fills.items()]
    end = max(each.end for each in replays)
    additions = [addition for each in replays for addition in each.additions]
    _hold_saved(index, set(inside).difference(slots), held)
    additions += [(snapshot, index.nodes[members[0]].enter, over)] if snapshot else []
    return PlannedReplay(
        members=members,
        alone=alone,
        whole=left.whole,
        segment=_segment(index, members, left, buffers, replays, (boundary, held)),
        stop=index.nodes[members[-1]].stop,
        end=end,
        tick=min(fills),
        held=tuple(held.items()),
        additions=tuple(additions),
        device_seconds=sum(each.device_seconds for each in replays),
        host=HostWork.sum(each.host for each in replays),
        multiplies=any(n not in alone and index.begins(n, end) for n in index.within(members, index.multiplying)),
    )


def _hold_saved(index: Index, slots: Iterable[int], held: dict[int, int]) -> None:
    """Note in `held` what units save: autograd holds it until its last backward."""
    saves = index.profile.saves
    for i in slots:
        if saves.tensor[i] >= 0:
            held[saves.tensor[i]] = max(held.get(saves.tensor[i], 0), saves.release[i])


def _never_read(index: Index, members: Members, slots: Sequence[int]) -> PlannedReplay | None:
    """Work out a run whose saved tensors no backward reads: its boundary is held until autograd frees the graph.

    Return None if the graph outlives the step: a backward of the next step may read it.
    """
    saves = index.profile.saves
    over = max((saves.release[i] for i in slots), default=index.profile.ticks)
    if over >= index.profile.ticks:
        return None
    boundary, buffers = boundary_of(index, members), changed_buffers(index, members)
    unread = {saves.tensor[i] for i in slots}.difference(boundary, {-1})
    snapshot = sum(index.profile.buffer_bytes[name] for name in buffers)
    return PlannedReplay(
        members=members,
        alone=frozenset(),
        segment=_segment(index, members, NOTHING, buffers, (), (boundary, boundary), unread),
        stop=index.nodes[members[-1]].stop,
        end=0,
        tick=over,
        held=tuple((tensor, over) for tensor in boundary),
        additions=((snapshot, index.nodes[members[0]].enter, over),) if snapshot else (),
        multiplies=False,
    )


def duplicated_in_replay(
    index: Index, members: Members, held: Collection[int], alone: Collection[int]
) -> dict[int, Mapping[int, Copies]]:
    """Return the held tensors that the replay makes too: the caller's code made something of a member's result."""
    born = (t for t in held if index.births[t] not in alone and index.covers(members, index.births[t]))
    return {tensor: copies_of(index, members, tensor) for tensor in born}


def _segment(
    index: Index,
    members: Members,
    left: UnitsLeft,
    buffers: tuple[str, ...],
    replays: Sequence[_OneReplay],
    held: tuple[Collection[int], Collection[int]],
    unread: Collection[int] = (),
) -> Segment:
    """Return the segment as a plan names it.

    Args:
        index: of the profile.
        members: the calls.
        left: what its replays do not run.
        buffers: the buffers that the calls change.
        replays: the replays of the segment.
        held: the tensors of its boundary, and all that it holds.
        unread: the tensors that it frees and that no replay restores.
    """
    boundary, everything = held
    freed = {tensor for each in replays for tensor in each.restored}.union(unread)
    return Segment(
        calls=index.keys(members),
        parent=index.nodes[index.nodes[members[0]].parent].key,
        buffers=buffers,
        unread=unread_names(index, members),
        keep=index.keys(left.keep),
        skip=index.keys(left.skip),
        linked=index.keys(m for m in members if any(index.handed_on(a, members) for a in index.nodes[m].arguments)),
        recompute_seconds=sum(each.seconds for each in replays),
        freed_bytes=index.total_bytes(freed),
        boundary_bytes=index.total_bytes(boundary),
        kept_bytes=index.total_bytes(tensor for tensor in everything if tensor not in boundary),
    )


def boundary_of(index: Index, members: Members) -> dict[int, None]:
    """Return the tensors that come into a run from outside, also those that it finds at attributes of modules."""
    records = (index.nodes[member].record for member in members if not index.is_function(member))
    found = (each.attributes for each in records if isinstance(each.attributes, tuple))
    return index.boundary(members) | dict.fromkeys(tensor for each in found for tensor in each)


def unread_names(index: Index, members: Members) -> tuple[str, ...]:
    """Return the names of attributes whose tensors a run finds and does not read, each once."""
    records = (index.nodes[member].record for member in members if not index.is_function(member))
    found = (each.unread for each in records if isinstance(each.unread, tuple))
    return tuple(dict.fromkeys(name for each in found for name in each))


def changed_buffers(index: Index, members: Members) -> tuple[str, ...]:
    """Return the names of the buffers that calls change, each once."""
    changing = index.within(members, index.changing)
    return tuple(dict.fromkeys(name for n in changing for name in index.nodes[n].record.buffers))


@dataclass(frozen=True, slots=True)
class _OneReplay:
    """One replay of a segment. A segment has one for each backward pass that reads it anew.

    Attributes:
        end: tick in forward of the last save that it fills.
        seconds: those of the device and of the host.
        device_seconds: those of the device alone.
        host: what it gives the host to do.
        restored: tensors that it brings back.
        additions: as those of `PlannedReplay`.
    """

    end: int
    seconds: float
    device_seconds: float
    host: HostWork
    restored: frozenset[int]
    additions: tuple[tuple[int, int, int], ...]


def _one_replay(
    index: Index,
    members: Members,
    tick: int,
    needed: Mapping[int, int],
    left: UnitsLeft,
    held: dict[int, int],
    twice: Mapping[int, Mapping[int, Copies]],
    snapshot: int,
) -> _OneReplay:
    """Work out one replay of a segment.

    Args:
        index: of the profile.
        members: the calls.
        tick: tick of backward at which it runs.
        needed: the saves that it fills, each with the tick until which backward needs it.
        left: what it does not run.
        held: until when tensors are held for it. Tensors that functions left alone made are added, as by `restored`.
        twice: tensors that exist in several copies in a replay, see `duplicated_in_replay`.
        snapshot: bytes of the buffers that the calls change; held again while it runs.
    """
    profile, saves, nodes, inside = index.profile, index.profile.saves, index.save_nodes, index.saves_of(members)
    alone = left.functions
    until = restored(index, members, needed, alone, held, twice)
    last = max(needed, key=lambda i: saves.pack[i])
    end = saves.pack[last]
    dead = [i for i in inside if i not in needed and nodes[i] not in alone]
    gathered = index.units.away(members, tick) if len(members) > 1 else {}  # parameters that it must gather first
    peak_bytes = replay_peak(index, members, end, until, alone, dead, twice, gathered)
    if any(index.nodes[member].draws for member in members):  # a generator's state is read before the replay
        peak_bytes = max(peak_bytes, profile.generator_bytes)
    ends: dict[int, int] = defaultdict(int)
    for (tensor, _), release in until.items():
        ends[release] += index.bytes_of[tensor]
    # The pack hook also runs for what functions left alone save, and that takes host time.
    n_packed = sum(saves.pack[i] <= end or nodes[i] in alone for i in inside)
    computes, gathers = device_seconds(index, members, last, alone), sum(each.seconds for each in gathered.values())
    host = host_work(index, members, end, n_packed, left)
    return _OneReplay(
        end=end,
        seconds=computes + n_packed * index.host.save_seconds + host.around_seconds(index.host) + gathers,
        device_seconds=computes + gathers,
        host=host,
        restored=frozenset(tensor for tensor, _ in until),
        additions=(
            (snapshot + peak_bytes, tick, tick + 1),
            *((size, tick + 1, release) for release, size in sorted(ends.items())),
        ),
    )


def restored(
    index: Index,
    members: Members,
    needed: Mapping[int, int],
    alone: Collection[int],
    held: dict[int, int],
    twice: Mapping[int, Mapping[int, Copies]],
) -> dict[tuple[int, int], int]:
    """Return until when each tensor that a replay restores is needed, by tensor and the function that casts it, or -1.

    The replay fills the `needed` saves, each until its tick. It does not make a tensor that is held for it, nor one
    that functions left alone made: such a tensor goes into `held`. Of a tensor that exists `twice`, a member saves the
    copy that it is given.
    """
    tensors, releases, save_nodes = index.profile.saves.tensor, index.profile.saves.release, index.save_nodes
    births, casts = index.births, index.casts
    until: dict[tuple[int, int], int] = {}
    for i, tick in needed.items():
        tensor = tensors[i]
        if tensor < 0:
            continue
        cast = -1
        if tensor in casts and births[tensor] != save_nodes[i] and index.is_function(save_nodes[i]):
            # In a replay under autocast every function casts weights anew, even if forward's cache spared it the cast.
            cast, is_held, is_made = save_nodes[i], False, True
        elif tensor in twice:
            copies = twice[tensor][index.member_of(members, save_nodes[i])]
            is_held, is_made = Copies.HELD in copies, Copies.MADE in copies
        else:
            is_held = tensor in held or births[tensor] in alone
            is_made = not is_held
        if is_held:
            held[tensor] = max(held.get(tensor, 0), releases[i])
        if is_made:
            before = until.get((tensor, cast), 0)
            until[tensor, cast] = tick if tick > before else before
    return until
