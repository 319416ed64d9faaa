"""Revolve: cuts a run of equal calls so that few boundaries are held at once and the fewest calls run again.

    8 calls, 2 boundaries     0 3 3 2 2 1 2 1     a part begins at each level that is not 0
                              └───────┘ └─┘ ┴     the outermost parts are those of the lowest level

There are `slots` boundaries besides the first. If each call may run at most r times before its own part is replayed,
the run can have up to β(slots, r) = (slots + r)! / (slots! r!) calls.

Source: Griewank and Walther 2000, "Algorithm 799: revolve". It is exact for equal calls, in O(length × levels).
Beaumont et al. 2019, rotor, find such trees for unequal calls by dynamic programming.
"""

from __future__ import annotations

import math
from functools import lru_cache


def fewest_runs(length: int, slots: int) -> int:
    """Return how often calls are executed in total, at least, to replay a row of equal calls in parts.

    Descents count as well as replays. A descent is a forward without saving, up to the boundary where a part begins.

    Args:
        length: number of calls in the run.
        slots: boundaries that may be held at once, besides the first. At least 1 if there is more than one call.
    """
    rounds = _rounds(length, slots)
    return length + (rounds * length - math.comb(slots + rounds, slots + 1) if rounds else 0)


@lru_cache(maxsize=4096)
def revolve(length: int, slots: int, level: int = 1) -> tuple[int, ...]:
    """Return for each call the level of the part that begins with it; 0 if no part begins there.

    Args:
        length: number of calls in the run.
        slots: as for `fewest_runs`.
        level: level of the outermost parts.
    """
    cuts: list[int] = []
    while length > 1:  # from left to right, with one boundary fewer each time
        rounds = _rounds(length, slots)
        most = math.comb(slots + rounds - 1, slots)  # most calls that all boundaries suffice for in one round fewer
        first = min(most, length - (math.comb(slots + rounds - 2, slots - 1) if rounds > 1 else 1))
        cuts += [level if cuts else 0, *revolve(first, slots, level + 1)[1:]]
        length, slots = length - first, slots - 1
    return (*cuts, level if cuts else 0)


def _rounds(length: int, slots: int) -> int:
    """Return how often a call runs at most before its own part is replayed."""
    rounds = 0
    while math.comb(slots + rounds, slots) < length:
        rounds += 1
    return rounds
