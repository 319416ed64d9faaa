"""One space of bytes that grows, in several rows of memory.

    arenas    ████████ 64 MiB ████████|██ 16 ██|█ 4 █|...      a tensor may lie across two

torch rounds each request for pinned memory up to a power of two, never splits a block and never gives one back before
its cache is emptied. So each arena is a power of two itself: about as large as what is missing, or as a sixteenth of
the space so far if that is more. So the arenas take at most a sixteenth more than what was asked for, or at most the
smallest arena more. Their number grows with the logarithm of the space.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy
import torch

from ..._calls.layout import flat

SMALLEST_ARENA_BYTES = 1 << 20
"""A stash that takes little, as for one call, pins no more than this."""

ARENA_SHARE = 16
"""A new arena is about 1 / `ARENA_SHARE` of the space so far, or more."""


class Arenas:
    """A space of bytes. It is not safe for threads.

    Args:
        take: takes a row of so many bytes.
    """

    def __init__(self, take: Callable[[int], torch.Tensor]) -> None:
        self._take = take
        self._rows: list[torch.Tensor] = []
        self._bounds = [0]  # where each begins, and where the last one ends: asking a tensor for its length is slow

    @property
    def size_bytes(self) -> int:
        """How large the space is."""
        return self._bounds[-1]

    @property
    def memory(self) -> list[torch.Tensor]:
        """All rows of memory that it has taken."""
        return [*self._rows]

    def grow(self, size_bytes: int) -> None:
        """Make the space at least so large.

        Raises:
            NoRoom: there is no memory; what was taken before stays.
        """
        while (missing_bytes := size_bytes - self.size_bytes) > 0:
            wanted_bytes = max(missing_bytes, self.size_bytes // ARENA_SHARE, SMALLEST_ARENA_BYTES)
            taken_bytes = 1 << (wanted_bytes.bit_length() - 1)
            self._rows.append(self._take(taken_bytes))
            self._bounds.append(self.size_bytes + taken_bytes)

    def rows(self, place: int, size_bytes: int) -> Iterator[torch.Tensor]:
        """Yield the memory of a span, in order."""
        number, end = bisect_right(self._bounds, place) - 1, place + size_bytes
        while place < end:
            begin, until = self._bounds[number], min(end, self._bounds[number + 1])
            yield self._rows[number][place - begin : until - begin]
            place, number = until, number + 1

    def drop(self) -> None:
        """Let go of all memory."""
        self._rows, self._bounds = [], [0]


class Cursor:
    """Goes through a space from a place on.

    Args:
        arenas: the space.
        place: where to begin.
    """

    def __init__(self, arenas: Arenas, place: int) -> None:
        self._arenas, self._place = arenas, place

    def write(self, source: torch.Tensor) -> None:
        """Copy the bytes of a tensor without gaps to where the cursor is, and go on."""
        for own, given in self._pairs(source):
            own.copy_(given)

    def read(self, target: torch.Tensor) -> None:
        """Copy what lies where the cursor is into a tensor without gaps, and go on."""
        for own, given in self._pairs(target):
            given.copy_(own)

    def matches(self, other: torch.Tensor) -> bool:
        """Whether the bytes where the cursor is equal those of a row on the host. If so, go on."""
        return all(_same(own, given) for own, given in self._pairs(other))

    def ahead(self, size_bytes: int) -> torch.Tensor | None:
        """Return the memory where the cursor is, and go on. If it is not in one row, return None and do not move."""
        row = next(self._arenas.rows(self._place, size_bytes), None)
        if row is None or row.nbytes < size_bytes:
            return None
        self._place += size_bytes
        return row

    def _pairs(self, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        row, begin = flat(tensor), 0
        size_bytes = row.nbytes
        for own in self._arenas.rows(self._place, size_bytes):
            own_bytes = own.nbytes
            yield own, row[begin : begin + own_bytes] if own_bytes < size_bytes else row
            begin += own_bytes
        self._place += size_bytes


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare bytes, eight at a time: for single bytes numpy takes ten times as long, and torch a hundred times."""
    a, b = one.numpy(), other.numpy()
    whole = len(a) // 8 * 8
    words = numpy.array_equal(a[:whole].view(numpy.int64), b[:whole].view(numpy.int64))
    return words and numpy.array_equal(a[whole:], b[whole:])
