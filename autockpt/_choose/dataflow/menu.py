"""The menu of a block: the selective ways to recompute it that are worth having.

seconds
  │ o                                o  on the lower hull of (held bytes, seconds): best for some price on bytes
  │
  │    o                             The plain block (all held, no seconds) is not on the menu,
  │                                  nor is anything that it beats.
  └──────────────────o plain
                 held bytes

Ways that are not on the hull are left out. A model has several blocks, and it does nearly as well with one corner of
the hull in some blocks and the next corner in the others.
"""

from __future__ import annotations

from ...solvers.deadline import NEVER, Deadline
from .dataflow import Dataflow, Decisions
from .min_cut import hull


def make_menu(flow: Dataflow, *, kept_seconds: float = 0.0, deadline: Deadline = NEVER) -> tuple[Decisions, ...]:
    """Find the ways to recompute a block that are worth having, most bytes first.

    Args:
        flow: the block.
        kept_seconds: what each kept unit costs the host.
        deadline: once it has passed, corners that were not found by then are left out.

    Returns:
        The ways: each costs more seconds than the one before it, and holds fewer bytes. Empty if none holds fewer bytes
        than the plain block.

    Example:
        >>> from autockpt.solvers import Dataflow, Item, Unit, make_menu
        >>> flow = Dataflow(
        ...     units=(
        ...         Unit(name="fc", seconds=4.0, reads=(0,), makes=(1,)),
        ...         Unit(name="gelu", seconds=1.0, reads=(1,), makes=(2,)),
        ...     ),
        ...     items=(Item(bytes=2, saved=True), Item(bytes=8, saved=True), Item(bytes=8, saved=True)),
        ... )
        >>> [(way.held_bytes, way.recompute_seconds) for way in make_menu(flow)]
        [(10, 1.0), (2, 5.0)]

    Source: the parametric programme of `min_cut.hull`. For every price of a held byte in seconds, a way with the lowest
    sum of seconds and priced bytes is on the menu, unless the plain block has it. Two minimum cuts for each vertex of
    the hull.
    """
    best: list[Decisions] = []
    corners = hull(flow, kept_seconds=kept_seconds, deadline=deadline)
    ways = [flow.decisions(units, kept_seconds=kept_seconds) for units in corners]
    for way in sorted(ways, key=lambda each: (each.held_bytes, each.recompute_seconds, len(each.recompute))):
        cheaper = not best or way.recompute_seconds < best[-1].recompute_seconds
        if way.recompute and way.held_bytes < flow.plain_bytes and cheaper:
            best.append(way)
    return tuple(reversed(best))
