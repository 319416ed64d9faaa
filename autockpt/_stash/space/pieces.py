"""Copying a tensor's own elements to a row of bytes and back, and nothing of what lies between them.

    a storage    q0 k0 v0 q1 k1 v1 q2 k2 v2 ...      queries, keys and values of one projection
    queries      q0       q1       q2                stored as q0 q1 q2, a third of the span in which they lie

A device copies contiguous bytes as they are. For anything else torch first makes a contiguous copy on the device. So
the whole span of a piece of the tensor is copied into a buffer on the host, and the elements are picked out there. That
takes no memory of the device, and a few copies of megabytes; a copy of each row would be thousands. More bytes go over
the bus than are stored.

Dimensions along which a tensor is expanded are stored once. If elements overlap or interleave in another way, the whole
span is stored. Views of a model's results do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from ..._calls.layout import flat, is_dense, span_bytes
from .memory import pageable

PIECE_BYTES, MOST_PIECE_BYTES = 1 << 20, 1 << 23
"""The longest span that passes through a buffer: the first if little is stored, the second if much is. Both fit into a
processor's cache. A copy of the first takes as long as it takes to start a copy; one of the second many times as long.
"""

PIECE_SHARE = 128
"""A buffer is no larger than 1 / `PIECE_SHARE` of all that is stored, or than `PIECE_BYTES` if that is more."""

Dimensions: TypeAlias = tuple[tuple[int, int], ...]
"""Size and stride of each, the largest stride first."""


Ahead: TypeAlias = Callable[[int], torch.Tensor | None]
"""Gives the memory of the next bytes of a row, as many as asked for, for a copier to work in; None if there is none."""


def dimensions(tensor: torch.Tensor) -> Dimensions | None:
    """Return how a tensor's elements lie, whatever the order of its dimensions; None where they overlap or interleave.

    Dimensions that follow each other without a gap are merged into one. Expanded ones are left out.
    """
    found: list[tuple[int, int]] = []
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    for size, stride in sorted(((n, s) for n, s in pairs if n != 1 and s), key=lambda pair: -pair[1]):
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    inner = 1  # elements from the first to the last of the inner dimensions
    for size, stride in reversed(found):
        if stride < inner:
            return None
        inner += (size - 1) * stride
    return tuple(found)


def gaps(tensor: torch.Tensor) -> Dimensions:
    """Return how a tensor's elements lie if something lies between them that is not stored; else nothing."""
    if tensor.is_contiguous():
        return ()
    found = dimensions(tensor) or ()
    return () if len(found) == 1 and found[0][1] == 1 else found


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor takes: its elements, each once, or their span."""
    if apart := gaps(tensor):
        return math.prod(size for size, _ in apart) * tensor.itemsize
    return span_bytes(tensor)


def longest_piece(all_bytes: int) -> int:
    """Return how long pieces may be where so many bytes are stored in all."""
    share_bytes = 1 << (all_bytes // PIECE_SHARE).bit_length() >> 1
    return max(PIECE_BYTES, min(MOST_PIECE_BYTES, share_bytes))


def pieces(tensor: torch.Tensor, longest_bytes: int | None = None) -> list[torch.Tensor]:
    """Cut a tensor into views, in the order of its elements: each without gaps, or with a span that is not too long.

    The order of the elements does not depend on how long the views may be.

    Args:
        tensor: the tensor to cut.
        longest_bytes: the longest such span; None for `PIECE_BYTES`.
    """
    if tensor.is_contiguous():
        return [tensor.detach()]
    if apart := gaps(tensor):
        longest = (PIECE_BYTES if longest_bytes is None else longest_bytes) // tensor.itemsize
        return list(_cut(tensor.detach(), apart, int(tensor.storage_offset()), longest))
    return [flat(tensor)]


def _cut(tensor: torch.Tensor, rest: Dimensions, begin: int, longest: int) -> Iterator[torch.Tensor]:
    span = 1 + sum((size - 1) * stride for size, stride in rest)
    if span <= longest or span == math.prod(size for size, _ in rest):
        yield tensor.as_strided([size for size, _ in rest], [stride for _, stride in rest], begin)
    else:
        (size, stride), inner = rest[0], rest[1:]
        row = 1 + sum((n - 1) * s for n, s in inner)
        rows = max(1, (longest - row) // stride + 1)
        for first in range(0, size, rows):
            n = min(rows, size - first)
            yield from _cut(tensor, ((n, stride), *inner) if n > 1 else inner, begin + first * stride, longest)


def _nowhere(size_bytes: int) -> None:
    """Say that there is no memory to work in."""


class Copier:
    """Copies pieces of tensors to and from a row of bytes, by way of two buffers. It is not safe for threads.

    Args:
        spreading: makes the buffer into which spans are copied as they lie on a device; never called for a CPU.
    """

    def __init__(self, spreading: Callable[[int], torch.Tensor]) -> None:
        self._spreading = spreading
        self._spread: torch.Tensor | None = None
        self._packed: torch.Tensor | None = None  # elements side by side

    def write(self, cut: list[torch.Tensor], write: Callable[[torch.Tensor], object], ahead: Ahead = _nowhere) -> None:
        """Hand the bytes of pieces to `write`, in order, as tensors without gaps: of the device or of the host.

        Args:
            cut: the pieces.
            write: is given each row.
            ahead: gives the memory to which a row of so many bytes would be written. Then the bytes are put there, and
                `write` is not called. None if there is no such memory.
        """
        for piece in cut:
            if is_dense(piece):
                write(piece)
                continue
            spread = piece
            if not piece.is_cpu:
                row = self.on_host(flat(piece))
                spread = row.view(piece.dtype).as_strided(piece.shape, piece.stride())
            memory = ahead(piece.nbytes)
            packed = self._packed_row(piece) if memory is None else memory
            packed.view(piece.dtype).view(piece.shape).copy_(spread)
            if memory is None:
                write(packed)

    def read(self, cut: list[torch.Tensor], read: Callable[[torch.Tensor], object], ahead: Ahead = _nowhere) -> None:
        """Let `read` fill tensors without gaps, in order, and put their bytes into the pieces.

        Args:
            cut: the pieces.
            read: is given each row.
            ahead: gives the memory from which a row of so many bytes would be read. Then the bytes are taken from
                there, and `read` is not called. None if there is no such memory.
        """
        for piece in cut:
            if is_dense(piece):
                read(piece)
                continue
            packed = ahead(piece.nbytes)
            if packed is None:
                packed = self._packed_row(piece)
                read(packed)
            elements = packed.view(piece.dtype).view(piece.shape)
            if piece.is_cpu:
                piece.copy_(elements)
            else:
                row = self._row(span_bytes(piece))
                row.view(piece.dtype).as_strided(piece.shape, piece.stride()).copy_(elements)
                flat(piece).copy_(row)

    def on_host(self, row: torch.Tensor) -> torch.Tensor:
        """Return a row, no longer than a piece, on the host. For a device's row it is a copy, until the next call."""
        return row if row.is_cpu else self._row(row.nbytes).copy_(row)

    @property
    def memory(self) -> list[torch.Tensor]:
        """The buffers that it has now."""
        return [each for each in (self._spread, self._packed) if each is not None]

    def drop(self) -> None:
        """Let go of the buffers."""
        self._spread = self._packed = None

    def _row(self, size_bytes: int) -> torch.Tensor:
        if self._spread is None or self._spread.nbytes < size_bytes:
            self._spread = None
            self._spread = self._spreading(_buffer_bytes(size_bytes))
        return self._spread[:size_bytes]

    def _packed_row(self, piece: torch.Tensor) -> torch.Tensor:
        if self._packed is None or self._packed.nbytes < piece.nbytes:
            self._packed = pageable(_buffer_bytes(piece.nbytes))
        return self._packed[: piece.nbytes]


def _buffer_bytes(size_bytes: int) -> int:
    """Return the size of a buffer for a row, or a longer one: a power of two, as a block of pinned memory is."""
    return max(PIECE_BYTES, 1 << (size_bytes - 1).bit_length())
