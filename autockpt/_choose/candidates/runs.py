"""Runs of siblings worth looking at: which calls may be recomputed together.

children    e0  e1  max_pool2d  e2  interpolate  cat  e3  cross_entropy        e: module calls, the others glue
runs        begin and end with a call that saves something, with the glue just before them where that pays
windows     glue before, up to `LONGEST` blocks with the glue between them, glue behind; small calls there count as glue

a block     ln_1  attn  add  ln_2  mlp  add                     add: called by the block's own code
stretches   ln_1 to attn, ln_2 to mlp, and each of the four
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from .book import Book
from .glue import is_glue
from .idle import is_free

__all__ = ["closed", "runs_of", "stretches", "windows"]

MAX_RUNS_PER_PARENT = 600
"""Runs of siblings grow with the square of their number; beyond this, only some lengths are offered."""

REACH = 1.5
"""The longest of these over the square root of the number, which is the length that holds least where a boundary holds
as much as a sibling (Chen et al. 2016, section 4.1); mostly it holds less."""

LONGEST = 3
"""Blocks in a window."""

FEW_UNITS = 2
"""A call with no more torch functions, such as an embedding or a norm, is no more than glue around a larger block."""

SHORT_CHAIN = 10
"""Longer chains have windows of a single block only: the more blocks there are, the less is lost by choosing for each
of them apart."""


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


def windows(book: Book, blocks: Sequence[int], most_units: int) -> Iterator[tuple[int, ...]]:
    """Find the runs of blocks and glue that are worth a menu of their own.

    Args:
        book: the profile.
        blocks: calls in forward order.
        most_units: torch functions in a run at most, views left out.

    Yields:
        Runs of blocks of one caller to which some glue belongs: what stands before the first and between them, with and
        without the small calls there; where what stands behind the last saves something, with that too and without.
    """
    calls = book.profile.calls
    longest = LONGEST if len(blocks) <= SHORT_CHAIN else 1
    for i, block in enumerate(blocks):
        if calls[block].parent < 0:
            continue
        siblings = book.children[calls[block].parent]
        at = siblings.index(block)
        for last in blocks[i : i + longest]:
            if calls[last].parent != calls[block].parent:
                break
            behind = siblings.index(last) + 1
            before, after = siblings[:at][::-1], siblings[behind:]
            begins = dict.fromkeys(at - reach for reach in _reaches(book, before, block, most_units))
            stops = dict.fromkeys(
                behind + _to_last_save(book, after[:reach]) for reach in (0, *_reaches(book, after, last, most_units))
            )
            for begin, stop in itertools.product(begins, stops):
                members = tuple(siblings[begin:stop])
                joined = any(_as_glue(book, member, block) for member in members)
                if joined and _n_units(book, members) <= most_units and not book.reason(members):
                    yield members


def _reaches(book: Book, calls: Sequence[int], block: int, most_units: int) -> tuple[int, int]:
    """How many of the calls on one side of a block, nearest first, are glue, and how many with the small calls."""
    glue = list(itertools.takewhile(lambda call: is_glue(book.profile.calls[call]), calls))
    near = far = len(glue)
    n_units = sum(_n_units(book, (call,)) for call in (block, *glue))
    for call in calls[near:]:
        n_units += _n_units(book, (call,))
        if n_units > most_units or not _as_glue(book, call, block):
            break
        far += 1
    return near, far


def _to_last_save(book: Book, calls: Sequence[int]) -> int:
    """How many of the calls there are up to the last that saves something."""
    return max((number for number, call in enumerate(calls, 1) if book.saves_in(call)), default=0)


def _as_glue(book: Book, call: int, block: int) -> bool:
    """Whether a call is no more than glue around a block."""
    return is_glue(book.profile.calls[call]) or _n_units(book, (call,)) <= FEW_UNITS < _n_units(book, (block,))


def closed(book: Book, blocks: Iterable[int], most_units: int) -> list[int]:
    """Take calls in place of the blocks inside them, where they are small enough for a menu of their own.

    A chain is opened where a call is far larger than the others; its glue stands around the call, not around its parts.

    Args:
        book: the profile.
        blocks: calls in forward order, none inside another.
        most_units: torch functions in a call at most, views left out.

    Returns:
        Calls in forward order, none inside another, and not the root.
    """
    calls = book.profile.calls
    found: dict[int, None] = {}
    for block in blocks:
        while calls[block].parent > 0 and _n_units(book, (calls[block].parent,)) <= most_units:
            block = calls[block].parent
        found[block] = None
    return list(found)


def _n_units(book: Book, members: tuple[int, ...]) -> int:
    """Count the torch functions of a run, views left out."""
    return sum(not is_free(book, f) for f in book.functions_of_run(members))


def stretches(book: Book, calls: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Find the runs of children, and the children, between the torch functions that a call's own code calls.

    A replay of the whole call that leaves out such a function needs a mode that meets all of them; one of a part
    between two of them does not, and keeps no unit outside it. Glue around blocks is a call, and bounds no stretch.

    Args:
        book: the profile.
        calls: those to look into.

    Yields:
        Runs of children that can be recomputed.
    """
    functions, record = book.profile.functions, book.profile.calls
    for call in calls:
        own = [
            functions.enter[f] for f in book.functions_of(call) if functions.call[f] == call and not is_free(book, f)
        ]
        if not own:
            continue
        parts: dict[int, list[int]] = {}
        for child in book.children[call]:
            parts.setdefault(bisect.bisect_left(own, record[child].enter), []).append(child)
        runs = [members for part in parts.values() for members in (tuple(part), *((child,) for child in part))]
        yield from (members for members in dict.fromkeys(runs) if not book.reason(members))


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
