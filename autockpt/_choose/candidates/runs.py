"""Runs of siblings worth looking at: which calls may be recomputed together.

children    e0  e1  max_pool2d  e2  interpolate  cat  e3  cross_entropy        e: module calls, the others glue
runs        begin and end with a call that saves something, with the glue just before them where that pays
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .book import Book
from .glue import is_glue

MAX_RUNS_PER_PARENT = 600
"""Runs of siblings grow with the square of their number; beyond this, only some lengths are offered."""

REACH = 1.5
"""The longest of these over the square root of the number, which is the length that holds least where a boundary holds
as much as a sibling (Chen et al. 2016, section 4.1); mostly it holds less."""


def runs_of(children: Sequence[int], book: Book) -> list[tuple[int, ...]]:
    """Find the runs of consecutive siblings that begin and end with a call that saves something.

    Args:
        children: the calls that one call makes, in forward order.
        book: the profile.

    Returns:
        The runs; those after glue also with as much of it as makes their boundary smaller.
    """
    saving = [bool(book.saves_in(child)) for child in children]
    lengths = _lengths(len(children))
    found: dict[tuple[int, ...], None] = {}
    for first in range(len(children)):
        for last in (first + length - 1 for length in lengths if first + length <= len(children)):
            if saving[first] and saving[last]:
                found[tuple(children[first : last + 1])] = None
                found.update(dict.fromkeys(_from_before(children, first, last, book)))
    return list(found)


def _lengths(n: int) -> list[int]:
    """Lengths of the runs of `n` siblings that are offered, evenly spaced by their ratio where they are not all."""
    if n * (n + 1) // 2 <= MAX_RUNS_PER_PARENT:
        return list(range(1, n + 1))
    longest, gaps = REACH * math.sqrt(n), max(MAX_RUNS_PER_PARENT // n - 1, 1)
    return sorted({round(longest ** (i / gaps)) for i in range(gaps + 1)})


def _from_before(children: Sequence[int], first: int, last: int, book: Book) -> Iterator[tuple[int, ...]]:
    """A run with the glue just before it, as far as that makes its boundary smaller."""
    least_bytes = -1
    while first and is_glue(book.profile.calls[children[first - 1]]):
        if least_bytes < 0:
            least_bytes = _boundary_bytes(book, tuple(children[first : last + 1]))
        first -= 1
        members = tuple(children[first : last + 1])
        bytes_ = _boundary_bytes(book, members)
        if bytes_ < least_bytes:
            least_bytes = bytes_
            yield members


def _boundary_bytes(book: Book, members: tuple[int, ...]) -> int:
    return int(sum(book.bytes[tensor] for tensor in book.boundary(members)))
