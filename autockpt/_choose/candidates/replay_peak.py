"""How much of what a replay bears is alive at once."""

from __future__ import annotations

import numpy as np

from .book import Book


def _graph_ends(book: Book, members: tuple[int, ...]) -> dict[int, int]:
    """By member, the tick until which results in the replay can lead back to what it saved: its own and its takers'."""
    calls = book.profile.calls
    ends = {member: calls[member].exit for member in members}
    for member in reversed(members):
        for argument in calls[member].arguments:
            for source in argument.sources:
                if source in ends:
                    ends[source] = max(ends[source], ends[member])
    return ends


def replay_peak(
    book: Book,
    members: tuple[int, ...],
    last_pack: int,
    restored: set[tuple[int, int]],
    kept: frozenset[int],
    dead: list[int],
) -> int:
    """Highest level of what a replay bears, up to the last save.

    Restored tensors stay; a member's output stays until the last member that takes it has run; what was saved by `dead`
    saves, of a part of the graph that died in forward, as long as the replay has that part; everything else dies as it
    did in forward.
    """
    copies = int(sum(book.bytes[tensor] for tensor, maker in restored if maker >= 0))
    calls = book.profile.calls
    start, stop = members[0], calls[members[-1]].stop
    low, high = np.searchsorted(book.birth, (calls[start].enter, last_pack))
    born = np.arange(low, high)
    born = born[(book.birth_call[low:high] >= start) & (book.birth_call[low:high] < stop)]
    if kept:
        born = born[[tensor not in kept for tensor in born.tolist()]]
    if not len(born):
        return copies
    death = book.natural[born].copy()
    position = {int(tensor): i for i, tensor in enumerate(born)}
    for member in members:
        for tensor in calls[member].outputs:
            if tensor in position:
                death[position[tensor]] = calls[member].exit
    for member in members:
        for argument in calls[member].arguments:
            if argument.tensor in position and book.inside(argument.sources, members):
                death[position[argument.tensor]] = calls[member].exit
    ends = _graph_ends(book, members) if dead else {}
    for i in dead:
        tensor = book.profile.saves.tensor[i]
        if tensor in position:
            released = min(book.profile.saves.release[i], ends[book.bearer(i, members)])
            death[position[tensor]] = max(death[position[tensor]], released)
    for tensor, maker in restored:
        if maker < 0 and tensor in position:
            death[position[tensor]] = last_pack + 1
    ticks = np.concatenate([book.birth[born], death])
    change = np.concatenate([book.bytes[born], -book.bytes[born]])
    order = np.lexsort((change, ticks))  # at one tick, deaths come before births
    return int(np.cumsum(change[order]).max(initial=0)) + copies
