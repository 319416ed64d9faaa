"""Which runs of a row of calls are looked at for a replay in parts, and where each run is cut.

Forward runs all calls once anyway, so it can keep the boundaries of the outermost parts. Each part is then a segment,
with the cuts that lie inside it. If the whole run is one segment, forward keeps only the boundary of the run. In
exchange, its calls run once more.

    row       a b c d e f g h i j        revolve(10, 2)   0 3 3 2 3 2 1 3 2 1
    parts     ───────────                a to f           0 2 2 1 2 1            segments; forward keeps the boundary
                          ─────          g to i                       0 2 1      of each
                                ─        j                                  0
    a whole   ───────────────────                         0 3 3 2 3 2 1 3 2 1    one segment; forward keeps one boundary
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, count, pairwise

from .revolve import fewest_runs, revolve

CutRun = tuple[int, int, tuple[int, ...]]
"""A run: its first call in the row, one past its last, and the level of each of its calls."""

LEAST = 3
"""Fewest calls of a run that is cut. A run of two calls gains nothing over one level of segments."""

MOST_TIMES, MOST_TIMES_ANYWHERE = 8, 4
"""How often the calls of a run may run on average, including the replays of its parts.

The first bound is for the runs of `_trees`, the second for those of `_anywhere`.
"""

MOST_CALLS = 30_000
"""Most calls that all runs looked at in one row may have together."""

PLACES = 64
"""Runs of one length begin at about so many places, and always at fewer than twice as many."""

ROOT2 = math.sqrt(2)


def cut_runs(length: int) -> Iterator[CutRun]:
    """Yield runs of a row of `length` calls, each once. Those that lower the peak most come first."""
    seen: set[CutRun] = set()
    calls = 0
    for each in chain(_trees(length), _anywhere(length)):
        first, stop, cuts = each
        if stop - first < LEAST or not any(cuts) or each in seen:
            continue
        calls += stop - first
        if calls > MOST_CALLS:
            return
        seen.add(each)
        yield each


def _trees(length: int) -> Iterator[CutRun]:
    """Yield the runs from the row's first call, cut at best: the outermost parts of each, then the run as a whole."""
    for stop in _stops(length):
        for slots in _slots(stop):
            if fewest_runs(stop, slots) <= MOST_TIMES * stop:
                whole = 0, stop, revolve(stop, slots)
                yield from (*_parts(whole), whole)


def _anywhere(length: int) -> Iterator[CutRun]:
    """Yield runs of all lengths, long ones first. Gradients add up over backward, so the best parts are not equal."""
    size, step = length, 0
    while size >= LEAST:
        for first in range(0, length - size + 1, max(size // 4, length // PLACES, 1)):
            for slots in _slots(size):
                if fewest_runs(size, slots) <= MOST_TIMES_ANYWHERE * size:
                    yield first, first + size, revolve(size, slots)
        step += 1
        size = round(length / ROOT2**step)


def _stops(length: int) -> Iterator[int]:
    """Yield how many of the first calls to cut: all of them, or all but the last few, which may not need it."""
    if length >= LEAST:
        yield length
    left = 1
    while length - left > max(length // 2, LEAST - 1):
        yield length - left
        left *= 2


def _parts(whole: CutRun) -> Iterator[CutRun]:
    """Yield the parts of a run between its outermost cuts, which are those of level 1.

    Each part is a run of its own. Its levels are lowered, so that its own outermost cuts have level 1 as well.
    """
    first, stop, cuts = whole
    edges = [first, *(place for place, level in enumerate(cuts, first) if level == 1), stop]
    for begin, end in pairwise(edges):
        inner = (0, *cuts[begin - first + 1 : end - first])
        lower_by = min((level for level in inner if level), default=1) - 1  # 0 if no cut lies inside the part
        yield begin, end, tuple(level and level - lower_by for level in inner)


def _slots(length: int) -> Iterator[int]:
    """Yield numbers of boundaries at nearly equal ratios: 1, 2, 3, 4, 6, 8, 12, 16 and so on, each below `length`."""
    yield from (slots for slots in (1, 2, 3) if slots < length)
    for power in count(2):
        yield from (slots for slots in (2**power, 3 * 2 ** (power - 1)) if slots < length)
        if 2**power >= length:
            return
