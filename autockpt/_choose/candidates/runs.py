"""Runs of sibling calls worth looking at: which may be recomputed together.

children    e0  e1  max_pool2d  e2  interpolate  cat  e3  cross_entropy        e: module calls, the others functions
runs        begin and end with a call that saves something, with the functions just before them where that pays
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from .profile_index import Index, Members

MAX_RUNS_PER_PARENT = 600
"""Runs of siblings grow with the square of their number; beyond this, only some lengths are offered."""

RUNS_A_LENGTH = 8
"""Of so many siblings that they have one long length only, how many of these runs begin within such a length."""

REACH = 1.5
"""The longest of these over the square root of the number, which is the length that holds least where a boundary holds
as much as a sibling (Chen et al. 2016, section 4.1); mostly it holds less."""

LARGE = 1 / 4
"""A call that saves more than this share of what the step saves is no block of a model: what its own code computes
between blocks is recomputed with them."""


def runs_of(index: Index) -> Iterator[Members]:
    """Find the runs of consecutive siblings, at every depth, that begin and end with a call that saves something.

    Those after functions also with as many of them as make their boundary smaller.
    """
    saved = index.profile.saves.tensor
    saved_bytes = {c: index.total_bytes({saved[i] for i in index.saves_of((c,))} - {-1}) for c in index.call_nodes}
    for row in sibling_rows(index, [call for call in saved_bytes if saved_bytes[call] > LARGE * saved_bytes[0]]):
        saving = [bool(index.saves_of((child,))) for child in row]
        found: dict[Members, None] = {}
        into_bytes = functools.cache(functools.partial(_boundary_bytes, index, row))
        for length in _lengths(len(row)):
            apart = max(length // RUNS_A_LENGTH, 1) if len(row) > MAX_RUNS_PER_PARENT else 1
            for first in range(0, len(row) - length + 1, apart):
                last = first + length - 1
                if saving[first] and saving[last]:
                    found[tuple(row[first : last + 1])] = None
                    if first and index.is_function(row[first - 1]):
                        found.update(dict.fromkeys(_from_before(index, row, first, last, into_bytes(last))))
        yield from found


def _lengths(n: int) -> list[int]:
    """Lengths of the runs of `n` siblings that are offered, evenly spaced by their ratio where they are not all."""
    if n * (n + 1) // 2 <= MAX_RUNS_PER_PARENT:
        return list(range(1, n + 1))
    longest, gaps = REACH * math.sqrt(n), max(MAX_RUNS_PER_PARENT // n - 1, 1)
    return sorted({round(longest ** (i / gaps)) for i in range(gaps + 1)})


def _from_before(
    index: Index, row: Sequence[int], first: int, last: int, into_bytes: Sequence[int]
) -> Iterator[Members]:
    """A run with the functions just before it, as far as that makes its boundary smaller; see `_boundary_bytes`."""
    least_bytes = into_bytes[first]
    while first and index.is_function(row[first - 1]):
        first -= 1
        if into_bytes[first] < least_bytes:
            least_bytes = into_bytes[first]
            yield tuple(row[first : last + 1])


def _boundary_bytes(index: Index, row: Sequence[int], last: int) -> list[int]:
    """Return the bytes of the boundary of the run that begins at each place of a row and ends at `last`.

    From right to left: a call's arguments come from outside until the call that returned one of them is a member too.
    O(arguments).
    """
    into: Counter[int] = Counter()  # by tensor, arguments of members that come from outside
    returned_by: dict[int, list[list[int]]] = defaultdict(list)  # by node, such arguments, each a list of its tensor
    found, total_bytes = [0] * (last + 1), 0
    for place in range(last, -1, -1):
        for waiting in returned_by.pop(row[place], ()):
            for tensor in waiting:
                into[tensor] -= 1
                total_bytes -= 0 if into[tensor] else index.bytes_of[tensor]
            waiting.clear()
        for argument in index.nodes[row[place]].arguments:
            if (tensor := argument.tensor) >= 0:
                into[tensor] += 1
                total_bytes += index.bytes_of[tensor] if into[tensor] == 1 else 0
                waiting = [tensor]
                for source in index.sources(argument):
                    returned_by[source].append(waiting)
        found[place] = total_bytes
    return found


def sibling_rows(index: Index, around: Iterable[int]) -> list[list[int]]:
    """The calls that each call makes, and of those `around` the torch functions that may be calls of a segment.

    They can run again, and either save something, or lead to what a call is given or one of them saves.
    """
    # Of most calls that call no module the profile does not tell what their functions are given.
    told = {node.parent for node in index.nodes if node.function >= 0 and node.arguments}
    parents = told.intersection(around) - _reaching_past(index)
    own = {f for f in index.functions if index.nodes[f].parent in parents and f not in index.refused}
    wanted = own.intersection(index.save_nodes)
    todo = [call for call in index.call_nodes if index.nodes[call].parent in parents] + list(wanted)
    while todo:
        led = {source for each in index.nodes[todo.pop()].arguments for source in index.sources(each) if source in own}
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
