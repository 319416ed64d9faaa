"""How many bytes of what a replay allocates are alive at once."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from ..index.profile_index import Index, Ints, Members
from ..index.whole import Gather
from .copies import Copies


def replay_peak(
    index: Index,
    members: Members,
    last_pack: int,
    restored: Collection[tuple[int, int]],
    alone: Collection[int],
    dead: list[int],
    twice: Mapping[int, Mapping[int, Copies]],
    away: Mapping[int, Gather] = MappingProxyType({}),
) -> int:
    """Highest level of what a replay allocates, up to the last save.

    Functions that are left `alone` allocate nothing. Restored tensors stay to the end. A member's output lives until
    the last member that takes it has run; if it exists `twice`, members that take the held copy do not count. The
    tensors of `dead` saves belong to a part of the graph that was freed in forward: they live as long as the replay has
    that part. Everything else dies as it did in forward. Parameters that are `away` come before their call, and go
    after it where nobody else has asked for them.
    """
    copies = sum(index.bytes_of[tensor] for tensor, maker in restored if maker >= 0)
    saves = index.profile.saves
    born = index.born_in(members, last_pack)
    if alone:
        born = born[~np.isin(index.birth_node[born], list(alone))]
    if not len(born):
        return copies
    death = index.natural[born].copy()
    position = {tensor: i for i, tensor in enumerate(born.tolist())}
    _until_taken(index, members, twice, position, death)
    ends = _graph_ends(index, members) if dead else {}
    for i in dead:
        tensor = saves.tensor[i]
        if tensor in position:
            bearer = members[bisect.bisect_right(members, index.save_nodes[i]) - 1]
            death[position[tensor]] = max(death[position[tensor]], min(saves.release[i], ends[bearer]))
    if kept := [position[tensor] for tensor, maker in restored if maker < 0 and tensor in position]:
        death[kept] = last_pack + 1
    comes = [each for member, gather in away.items() for each in _comings(index, member, gather)]
    whens, sizes = np.array(comes, np.int64).reshape(-1, 2).T
    ticks = np.concatenate([index.birth[born], death, whens])
    change = np.concatenate([index.bytes[born], -index.bytes[born], sizes])
    order = np.lexsort((change, ticks))  # at one tick, deaths come before births
    return int(np.cumsum(change[order]).max(initial=0)) + copies


def _comings(index: Index, member: int, gather: Gather) -> Iterator[tuple[int, int]]:
    """Yield at which ticks the level changes by how much, as a unit's parameters come and go."""
    enter, leave = index.nodes[member].enter, index.nodes[member].exit
    yield enter, gather.whole_bytes + (0 if gather.asked else gather.bringing_bytes)
    yield enter + 1, -gather.bringing_bytes
    if not gather.asked:
        yield leave, -gather.whole_bytes


def _until_taken(
    index: Index,
    members: Members,
    twice: Mapping[int, Mapping[int, Copies]],
    position: Mapping[int, int],
    death: Ints,
) -> None:
    """Set the death of what members return: it lives until the last member that takes it has run."""
    nodes = index.nodes

    def is_made(tensor: int, member: int) -> bool:
        return tensor in position and (tensor not in twice or Copies.MADE in twice[tensor][member])

    for member in members:
        for tensor in nodes[member].outputs:
            if is_made(tensor, member):
                death[position[tensor]] = nodes[member].exit
    for member in members:
        for argument in nodes[member].arguments:
            if is_made(argument.tensor, member) and index.handed_on(argument, members):
                death[position[argument.tensor]] = nodes[member].exit


def _graph_ends(index: Index, members: Members) -> dict[int, int]:
    """By member, the tick until which its graph lives in the replay: it, and all that take its results, have run."""
    ends = {member: index.nodes[member].exit for member in members}
    for member in reversed(members):
        for argument in index.nodes[member].arguments:
            for source in argument.sources:
                if source in ends:
                    ends[source] = max(ends[source], ends[member])
    return ends
