"""The menu of a block: the selective ways to recompute it that are worth having.

seconds
  │ o                                o  on the lower hull of (held bytes, seconds): best for some price on bytes
  │  ·                               ·  near it: a corner of the hull with one or two decisions of its neighbour
  │    o
  │       ·                          The plain block (all held, no seconds) is not on the menu,
  │            o                     nor is anything that it beats.
  └──────────────────o plain
                 held bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, pairwise

from .dataflow import Dataflow, Decisions
from .errors import InvalidProblem
from .min_cut import hull

MOST_PAIRED = 12
"""Decisions in which two corners differ at most for pairs of them to be tried: their number grows with the square."""


def make_menu(flow: Dataflow, *, kept_seconds: float = 0.0, between: bool = True) -> tuple[Decisions, ...]:
    """Find the ways to recompute a block that are worth having, most bytes first.

    Args:
        flow: the block.
        kept_seconds: what each kept unit costs the host.
        between: whether to look between the corners of the hull. Where there are many such blocks two corners mixed
            do for what lies between them.

    Returns:
        Ways, none better in both bytes and seconds; none where nothing is better than the plain block.

    Example:
        >>> from autockpt.solvers.dataflow import Dataflow, Item, Unit
        >>> from autockpt.solvers.menu import make_menu
        >>> flow = Dataflow(
        ...     units=(
        ...         Unit(name="fc", seconds=4.0, reads=(0,), makes=(1,)),
        ...         Unit(name="gelu", seconds=1.0, reads=(1,), makes=(2,)),
        ...     ),
        ...     items=(Item(bytes=2, saved=True), Item(bytes=8, saved=True), Item(bytes=8, saved=True)),
        ... )
        >>> [(way.held_bytes, way.recompute_seconds) for way in make_menu(flow)]
        [(10, 1.0), (2, 5.0)]

    Source: the parametric programme of `min_cut.hull`. The corners are exact; what lies between them is a
    heuristic. Two cuts a corner, and O(decisions² × units) between two.
    """
    corners = hull(flow, kept_seconds=kept_seconds)
    ways = [flow.decisions(units, kept_seconds=kept_seconds) for units in (*corners, flow.whole())]
    if between:
        ways += _between(flow, corners, kept_seconds)
    return _undominated(flow, ways)


def _between(flow: Dataflow, corners: Sequence[tuple[int, ...]], kept_seconds: float) -> Iterator[Decisions]:
    """Each corner with one or two of the decisions in which a neighbour differs, where that can be carried out."""
    for left, right in pairwise(corners):
        differ = sorted({flow.groups[unit] for unit in set(left) ^ set(right)})
        for count in (1, 2) if len(differ) <= MOST_PAIRED else (1,):
            for groups in combinations(differ, count):
                changed = set(chain.from_iterable(groups))
                for corner in (left, right):
                    try:
                        yield flow.decisions(changed.symmetric_difference(corner), kept_seconds=kept_seconds)
                    except InvalidProblem:
                        continue  # something else needs what this would leave out


def _undominated(flow: Dataflow, ways: Iterable[Decisions]) -> tuple[Decisions, ...]:
    """Leave out what another, or the plain block, equals or beats."""
    best: list[Decisions] = []
    for way in sorted(ways, key=lambda each: (each.held_bytes, each.recompute_seconds, len(each.recompute))):
        cheaper = not best or way.recompute_seconds < best[-1].recompute_seconds
        if way.recompute and way.held_bytes < flow.plain_bytes and cheaper:
            best.append(way)
    return tuple(reversed(best))
