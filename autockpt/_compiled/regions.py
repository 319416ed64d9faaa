"""Regions of forward, and the ways to run a part of one again: `_choose/dataflow` has the menu of each.

operators   0 ──── 4 ──── 9 ─────── 17 ── 21          cuts: places that little memory crosses
regions     [0, 4) [4, 9) [0, 9) [4, 17) ...          from any cut to one of the next few, within a graph
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .._choose.dataflow.dataflow import Dataflow, Item, Unit
from .._choose.dataflow.menu import make_menu
from ..solvers.deadline import NEVER, Deadline
from .step import JointStep

MOST_CUTS = 80
"""More cuts than these are thinned out to those that least memory crosses."""

REACH = 8
"""A region goes at most so many cuts far."""

MOST_WAYS = 12
"""Of the ways to run a region again, at most so many are candidates, spread over the menu."""


def crossing_bytes(step: JointStep) -> list[int]:
    """Return the bytes that stand for forward itself at each place between two of its operators, both ends included."""
    change = [0] * (len(step.forward) + 2)
    for storage, i in step.maker.items():
        change[i + 1] += step.storage_bytes[storage]
        change[step.last_read[storage] + 1] -= step.storage_bytes[storage]
    found, level = [], 0
    for difference in change[:-1]:
        level += difference
        found.append(level)
    return found


def cuts(step: JointStep) -> list[int]:
    """Return where regions may begin or end: at the borders of graphs, and where little memory crosses."""
    crossing, n = crossing_bytes(step), len(step.forward)
    borders = {0, n} | {i for i in range(1, n) if step.forward[i].graph != step.forward[i - 1].graph}
    low = [p for p in range(1, n) if crossing[p] <= crossing[p - 1] and crossing[p] <= crossing[p + 1]]
    limit_bytes = sorted(crossing[p] for p in low)[:MOST_CUTS][-1] if low else 0
    return sorted(borders | {p for p in low if crossing[p] <= limit_bytes})


def regions(step: JointStep) -> Iterator[tuple[int, int]]:
    """Yield the regions, as begin and end; shorter ones first, and each graph as a whole."""
    places = cuts(step)
    found = [
        (begin, end)
        for i, begin in enumerate(places)
        for end in places[i + 1 : i + 1 + REACH]
        if step.forward[begin].graph == step.forward[end - 1].graph
    ]
    borders = [p for p in places if p in (0, len(step.forward)) or step.forward[p].graph != step.forward[p - 1].graph]
    yield from sorted({*found, *pairwise(borders)}, key=lambda each: (each[1] - each[0], each))


def ways(step: JointStep, begin: int, end: int, deadline: Deadline = NEVER) -> list[frozenset[int]]:
    """Return ways to run a part of a region again, each as the indices of operators from its begin on.

    What later operators of forward read is kept, if these may run again: it is there in any case where they do.
    """
    flow, units = _flow(step, begin, end)
    menu = [frozenset(units[u] for u in way.recompute) for way in make_menu(flow, deadline=deadline)]
    if len(menu) > MOST_WAYS:
        menu = [menu[round(i * (len(menu) - 1) / (MOST_WAYS - 1))] for i in range(MOST_WAYS)]
    return [*dict.fromkeys(way for way in menu if way)]


def _flow(step: JointStep, begin: int, end: int) -> tuple[Dataflow, list[int]]:
    """Return a region as a dataflow, and the place of each of its units from the region's begin on."""
    number: dict[int, int] = {}
    items: list[Item] = []

    def item(storage: int) -> int:
        if storage not in number:
            number[storage] = len(items)
            saved = storage in step.backward_reads
            outside = step.maker[storage] < begin and saved
            items.append(
                Item(bytes=step.storage_bytes[storage], saved=saved, free=outside or step.leaves(storage, end))
            )
        return number[storage]

    units, places = [], []
    for i in range(begin, end):
        operator = step.forward[i]
        reads, makes = tuple(map(item, operator.reads)), [*map(item, operator.makes)]
        if operator.kept or any(step.leaves(storage, end) for storage in operator.makes):
            continue
        places.append(i - begin)
        units.append(Unit(name=operator.name, seconds=operator.seconds, reads=reads, makes=tuple(makes)))
    return Dataflow(units=tuple(units), items=tuple(items)), places
