"""Runs of sibling calls worth looking at: which may be recomputed together.

children    e0  e1  max_pool2d  e2  interpolate  cat  e3  cross_entropy        e: module calls, the others functions
runs        begin and end with a call that saves something, with the functions just before them where that pays
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..index.profile_index import Index, Members
from .entering import entering_bytes

MAX_RUNS_PER_PARENT = 600
"""Runs of siblings grow with the square of their number; beyond this, only some lengths are offered."""

RUNS_A_LENGTH = 8
"""Of so many siblings that they have one long length only, how many of these runs begin within such a length."""

REACH = 1.5
"""The longest of these over the square root of the number, which is the length that holds least where a boundary holds
as much as a sibling (Chen et al. 2016, section 4.1); mostly it holds less."""

BACK = 128
"""The longest run with functions before it that is offered whichever call of a long row it ends with. Longer ones end
at every second call, those twice as long at every fourth: together they have about so many members for each call."""

LARGE = 1 / 4
"""A call that saves more than this share of what the step saves is no block of a model: what its own code computes
between blocks is recomputed with them."""


class Run(NamedTuple):
    """Some consecutive siblings.

    Attributes:
        members: the calls.
        even: whether it is one of those that suffice where there is no time for all: of each length those that lie side
            by side, and a few that go far back. Single functions of a long row are left out.
    """

    members: Members
    even: bool


def runs_of(index: Index) -> Iterator[Run]:
    """Find the runs of consecutive siblings, at every depth, that begin and end with a call that saves something.

    Those after functions also with as many of them as make their boundary smaller.
    """
    for row in rows_of(index):
        spans = _spans(index, row)
        earlier = _earlier(index, row, spans)
        found: dict[tuple[int, int], bool] = {}
        free: Counter[int] = Counter()  # by length, the first place that none of the even runs covers
        for first, last in spans:
            length = last + 1 - first
            even = first >= free[length]
            free[length] = last + 1 if even else free[length]
            one_of_many = length == 1 and len(row) > MAX_RUNS_PER_PARENT and index.is_function(row[first])
            found[first, last] = even and not one_of_many
            for begin in earlier.get((first, last), ()):
                found.setdefault((begin, last), RUNS_A_LENGTH * _evenness(last) >= len(row))
        yield from (Run(tuple(row[first : last + 1]), even) for (first, last), even in found.items())


def rows_of(index: Index) -> list[list[int]]:
    """The siblings that runs are made of, with torch functions where they are blocks of the model."""
    saved = index.profile.saves.tensor
    saved_bytes = {c: index.total_bytes({saved[i] for i in index.saves_of((c,))} - {-1}) for c in index.call_nodes}
    return sibling_rows(index, [call for call in saved_bytes if saved_bytes[call] > LARGE * saved_bytes[0]])


def _spans(index: Index, row: Sequence[int]) -> list[tuple[int, int]]:
    """First and last place of the runs of a row that begin and end with a call that saves something."""
    saving = [bool(index.saves_of((child,))) for child in row]
    found = []
    for length in _lengths(len(row)):
        apart = max(length // RUNS_A_LENGTH, 1) if len(row) > MAX_RUNS_PER_PARENT else 1
        firsts = range(0, len(row) - length + 1, apart)
        found += [(first, first + length - 1) for first in firsts if saving[first] and saving[first + length - 1]]
    return found


def _lengths(n: int) -> list[int]:
    """Lengths of the runs of `n` siblings that are offered, evenly spaced by their ratio where they are not all."""
    if n * (n + 1) // 2 <= MAX_RUNS_PER_PARENT:
        return list(range(1, n + 1))
    longest, gaps = REACH * math.sqrt(n), max(MAX_RUNS_PER_PARENT // n - 1, 1)
    if n > MAX_RUNS_PER_PARENT:  # so that runs which begin apart lie side by side
        longest = max(longest // RUNS_A_LENGTH, 1) * RUNS_A_LENGTH
    return sorted({round(longest ** (i / gaps)) for i in range(gaps + 1)})


def _earlier(index: Index, row: Sequence[int], spans: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    """Where else runs may begin: at functions just before them, as far as that makes their boundary smaller.

    In a long row few runs go far back, as of any length: the longer, the fewer places there are at which they end.
    """
    firsts: dict[int, list[int]] = defaultdict(list)
    for first, last in spans:
        if first and index.is_function(row[first - 1]):
            firsts[last].append(first)
    back = [0] * len(row)  # how many functions stand just before each place
    for place in range(1, len(row)):
        back[place] = back[place - 1] + 1 if index.is_function(row[place - 1]) else 0
    found: dict[tuple[int, int], list[int]] = {}
    lengths = _lengths(len(row))
    for last, into in enumerate(entering_bytes(index, row) if firsts else ()):
        longest = last + 1 if len(lengths) == len(row) else max(lengths[-1], BACK * _evenness(last))
        for first in firsts.get(last, ()):
            begin = max(first - back[first], last + 1 - longest)
            if begin < first:
                bytes_back = into[begin : first + 1][::-1]
                smaller = bytes_back[1:] < np.minimum.accumulate(bytes_back)[:-1]
                found[first, last] = [first - 1 - int(i) for i in np.flatnonzero(smaller)]
    return found


def _evenness(last: int) -> int:
    """The largest power of 2 that divides the number of siblings up to the last of a run."""
    return (last + 1) & -(last + 1)


def sibling_rows(index: Index, around: Iterable[int]) -> list[list[int]]:
    """The calls that each call makes, and of those `around` the torch functions that may be calls of a segment.

    Those can run again, and they save something, or make what a call or another of them is given.
    """
    # The profile has the arguments of functions of these calls. Of most calls that call no module it has none.
    told = {node.parent for node in index.nodes if node.function >= 0 and node.arguments}
    parents = told.intersection(around) - _reaching_past(index)
    own = {f for f in index.functions if index.nodes[f].parent in parents and f not in index.refused}
    wanted = own.intersection(index.save_nodes)
    todo = [call for call in index.call_nodes if index.nodes[call].parent in parents] + list(wanted)
    while todo:
        led = {source for each in index.nodes[todo.pop()].arguments for source in each.sources if source in own}
        todo += led - wanted
        wanted |= led
    return [[child for child in row if child in wanted or not index.is_function(child)] for row in index.children]


def _reaching_past(index: Index) -> set[int]:
    """Calls whose own code calls modules that are not its own, or past one that is called itself.

    Frames would take what those run for the caller's own code, and count other functions than the recorder did.
    """
    names = {index.nodes[call].record.name for call in index.call_nodes}
    found: set[int] = set()
    for call in index.call_nodes[1:]:
        parent = index.nodes[call].parent
        path = index.nodes[parent].record.name.split(".") if parent else []
        parts = index.nodes[call].record.name.split(".")
        between = (".".join(parts[:stop]) for stop in range(len(path) + 1, len(parts)))
        if parts[: len(path)] != path or any(name in names for name in between):
            found.add(parent)
    return found
