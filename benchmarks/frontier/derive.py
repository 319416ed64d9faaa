"""What follows from measurements by arithmetic alone: peaks, frontiers, and one method's cost over another's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

__all__ = [
    "LEAST_OVERHEAD",
    "cost_ratio",
    "geometric_mean",
    "highest",
    "interpolate",
    "lower_frontier",
    "standard_error",
]

Point = tuple[float, float]
"""Peak, and recompute overhead."""

LEAST_OVERHEAD = 0.01
"""Recompute overheads below this are noise: they count as this when they are divided."""


def lower_frontier(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other beats on both axes, by rising peak, hence falling overhead."""
    frontier: list[Point] = []
    for peak, overhead in sorted(points):
        if not frontier or overhead < frontier[-1][1]:
            frontier.append((peak, overhead))
    return frontier


def interpolate(frontier: Sequence[Point], peak: float) -> float | None:
    """Return the overhead at `peak` on the lines between a frontier's points.

    Above the highest peak the last point's, which stays within; None below the lowest, which is not reached.
    """
    if peak >= frontier[-1][0]:
        return frontier[-1][1]
    for (low, above), (high, below) in itertools.pairwise(frontier):
        if low <= peak <= high:
            return above + (below - above) * (peak - low) / (high - low)
    return None


def cost_ratio(ours: float, theirs: float) -> float:
    """Return our overhead over theirs, neither taken for less than `LEAST_OVERHEAD`."""
    return max(ours, LEAST_OVERHEAD) / max(theirs, LEAST_OVERHEAD)


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean; None of nothing."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def highest(changes: Iterable[tuple[int, int]], left_out: Iterable[int]) -> int:
    """Return how high the level rises over allocations and frees.

    Args:
        changes: address and bytes of each, in order; bytes are negative for a free.
        left_out: addresses whose last block is not to count, from its allocation on.
    """
    changes = list(changes)
    ignored = {address: index for index, (address, change) in enumerate(changes) if change > 0}
    unseen = {ignored[address] for address in left_out if address in ignored}
    live: dict[int, int] = {}
    level = top = 0
    for index, (address, change) in enumerate(changes):
        if change < 0:
            level -= live.pop(address, 0)  # 0: older than the step, or left out
        elif index not in unseen:
            live[address] = change
            level += change
            top = max(top, level)
    return top


def standard_error(quartiles: tuple[float, float], count: int) -> float:
    """Return the standard error of the median of so many values with these quartiles, as if the values were normal."""
    first, third = quartiles
    deviation = (third - first) / 1.349
    return math.sqrt(math.pi / 2) * deviation / math.sqrt(count)
