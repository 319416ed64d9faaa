"""Which runs of a row of calls are looked at in parts, and where each is cut.

Forward runs all calls once anyway, so it can keep the boundaries of the outermost parts: each is a segment then, with
the cuts inside it. A run as a whole holds nothing from forward on but its own boundary, for one run of its calls more.

    row       a b c d e f g h i j        revolve(10, 2)   0 3 3 2 3 2 1 3 2 1
    parts     ───────────                a to f           0 2 2 1 2 1            segments, whose boundaries wait from
                          ─────          g to i                       0 2 1      forward on
                                ─        j                                  0
    a whole   ───────────────────                         0 3 3 2 3 2 1 3 2 1
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, count, pairwise

from .revolve import fewest_runs, revolve

Offer = tuple[int, int, tuple[int, ...]]
"""From which call of a row up to which one a run goes, and its cuts."""

LEAST = 3
"""Calls of a run in parts: of two, one level does as well."""

MOST_TIMES, MOST_TIMES_ANYWHERE = 8, 4
"""How often its calls may run on the average, the replays of its parts among it: of a row, and of a run anywhere."""

MOST_CALLS = 30_000
"""Calls of all runs of a row together that are looked at."""

PLACES = 64
"""Of each length at most so many runs begin anywhere."""

ROOT2 = math.sqrt(2)


def offers(length: int) -> Iterator[Offer]:
    """Yield runs of a row of so many calls, each once; what lowers the peak most comes first."""
    seen: set[Offer] = set()
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


def _trees(length: int) -> Iterator[Offer]:
    """The outermost parts of the best ways for the row, and the row as a whole."""
    for stop in _stops(length):
        for slots in _slots(stop):
            if fewest_runs(stop, slots) <= MOST_TIMES * stop:
                whole = 0, stop, revolve(stop, slots)
                yield from (*_parts(whole), whole)


def _anywhere(length: int) -> Iterator[Offer]:
    """Runs of all lengths, from long to short: gradients add up over backward, so the best parts are not even."""
    size, step = length, 0
    while size >= LEAST:
        for first in range(0, length - size + 1, max(size // 4, length // PLACES, 1)):
            for slots in _slots(size):
                if fewest_runs(size, slots) <= MOST_TIMES_ANYWHERE * size:
                    yield first, first + size, revolve(size, slots)
        step += 1
        size = round(length / ROOT2**step)


def _stops(length: int) -> Iterator[int]:
    """How many of the calls go in parts: all, or all but the last few, which may have no need of it."""
    if length >= LEAST:
        yield length
    left = 1
    while length - left > max(length // 2, LEAST - 1):
        yield length - left
        left *= 2


def _parts(whole: Offer) -> Iterator[Offer]:
    """The outermost parts of a run, as runs."""
    first, stop, cuts = whole
    edges = [first, *(place for place, level in enumerate(cuts, first) if level == 1), stop]
    for begin, end in pairwise(edges):
        inner = (0, *cuts[begin - first + 1 : end - first])
        least = min((level for level in inner if level), default=1) - 1
        yield begin, end, tuple(level and level - least for level in inner)


def _slots(length: int) -> Iterator[int]:
    """Numbers of boundaries, nearly evenly spaced by their ratio: 1, 2, 3, 4, 6, 8, 12, 16 and so on."""
    yield from (slots for slots in (1, 2, 3) if slots < length)
    for power in count(2):
        yield from (slots for slots in (2**power, 3 * 2 ** (power - 1)) if slots < length)
        if 2**power >= length:
            return
