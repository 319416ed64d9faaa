"""How a run of equal calls is run again with few boundaries at once, for the fewest calls: Revolve.

    8 calls, 2 boundaries     0 3 3 2 2 1 2 1     a part begins where the level is not 0
                              └───────┘ └─┘ ┴     the outermost parts are those of the lowest level

With `slots` boundaries besides the first, and each call run at most r times before its own part is, a run may have
β(slots, r) = (slots + r)! / (slots! r!) calls.

Source: Griewank and Walther 2000, "Algorithm 799: revolve". Beaumont et al. 2019, rotor, find such trees for unequal
calls, by dynamic programming. Exact for equal calls; O(length × levels).
"""

from __future__ import annotations

import math
from functools import lru_cache


def fewest_runs(length: int, slots: int) -> int:
    """How many calls run, in all descents and replays together, with so many boundaries besides the first.

    Args:
        length: number of calls.
        slots: boundaries that stand at once; 1 or more, where there is more than one call.
    """
    rounds = _rounds(length, slots)
    return length + (rounds * length - math.comb(slots + rounds, slots + 1) if rounds else 0)


@lru_cache(maxsize=4096)
def revolve(length: int, slots: int, level: int = 1) -> tuple[int, ...]:
    """Return for each call the level of the part that begins with it, 0 where none does; arguments as above."""
    cuts: list[int] = []
    while length > 1:  # from left to right, with a boundary less each time
        rounds = _rounds(length, slots)
        most = math.comb(slots + rounds - 1, slots)  # calls that all boundaries do for, in a round less
        first = min(most, length - (math.comb(slots + rounds - 2, slots - 1) if rounds > 1 else 1))
        cuts += [level if cuts else 0, *revolve(first, slots, level + 1)[1:]]
        length, slots = length - first, slots - 1
    return (*cuts, level if cuts else 0)


def _rounds(length: int, slots: int) -> int:
    """How often the calls that run most often run before their own part is replayed."""
    rounds = 0
    while math.comb(slots + rounds, slots) < length:
        rounds += 1
    return rounds
