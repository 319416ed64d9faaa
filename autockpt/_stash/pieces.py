"""Copying a tensor's own elements to a row of bytes and back, and nothing of what lies between them.

    a storage    q0 k0 v0 q1 k1 v1 q2 k2 v2 ...      queries, keys and values of one projection
    queries      q0       q1       q2                stored as q0 q1 q2, a third of the span in which they lie

A device copies contiguous bytes as they are; for anything else torch makes a contiguous copy on the device first. So
the span of a piece of the tensor is copied into a buffer on the host, and its elements are taken out of it there: that
takes no memory of the device, and a few copies of a megabyte where a copy of each row would be thousands. More goes
over the bus than is stored, the whole span, as it lies in the tensor.

Dimensions along which a tensor is expanded are stored once. Where elements overlap or interleave in another way, which
views of a model's results do not, the span is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from .._calls.layout import flat, is_dense, span_bytes
from .memory import pageable

PIECE_BYTES = 1 << 20
"""The longest span that passes through a buffer. Small enough for a processor's cache, and large enough that a copy
takes longer than it takes to start one."""

Dimensions: TypeAlias = tuple[tuple[int, int], ...]
"""Size and stride of each, the largest stride first."""


def dimensions(tensor: torch.Tensor) -> Dimensions | None:
    """Return how a tensor's elements lie, whatever the order of its dimensions; None where they overlap or interleave.

    Dimensions that lie in one another without a gap are one, and expanded ones are none.
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


def pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Cut a tensor into views, as its elements lie: each without gaps, or with a span of at most `PIECE_BYTES`."""
    if tensor.is_contiguous():
        return [tensor.detach()]
    found = dimensions(tensor)
    if found is None:
        return [flat(tensor)]
    return list(_cut(tensor.detach(), found, int(tensor.storage_offset())))


def _cut(tensor: torch.Tensor, rest: Dimensions, begin: int) -> Iterator[torch.Tensor]:
    view = tensor.as_strided([size for size, _ in rest], [stride for _, stride in rest], begin)
    if is_dense(view) or span_bytes(view) <= PIECE_BYTES:
        yield view
    else:
        (size, stride), inner = rest[0], rest[1:]
        row = 1 + sum((n - 1) * s for n, s in inner)
        rows = max(1, (PIECE_BYTES // tensor.itemsize - row) // stride + 1)
        for first in range(0, size, rows):
            n = min(rows, size - first)
            yield from _cut(tensor, ((n, stride), *inner) if n > 1 else inner, begin + first * stride)


def stored_bytes(cut: list[torch.Tensor]) -> int:
    """Bytes that a tensor takes which is cut so."""
    return sum(piece.nbytes for piece in cut)


class Copier:
    """Copies pieces of tensors to and from a row of bytes, by way of two buffers. It is not safe for threads.

    Args:
        spreading: makes the buffer into which spans are copied as they lie on a device; never called for a CPU.
    """

    def __init__(self, spreading: Callable[[int], torch.Tensor]) -> None:
        self._spreading = spreading
        self._spread: torch.Tensor | None = None
        self._packed: torch.Tensor | None = None  # elements side by side

    def write(self, cut: list[torch.Tensor], write: Callable[[torch.Tensor], object]) -> None:
        """Hand the bytes of pieces to `write`, in order, as tensors without gaps: of the device or of the host."""
        for piece in cut:
            if is_dense(piece):
                write(piece)
            else:
                packed, spread = self._packed_row(piece), piece
                if not piece.is_cpu:
                    row = self.on_host(flat(piece))
                    spread = row.view(piece.dtype).as_strided(piece.shape, piece.stride())
                packed.view(piece.dtype).view(piece.shape).copy_(spread)
                write(packed)

    def read(self, cut: list[torch.Tensor], read: Callable[[torch.Tensor], object]) -> None:
        """Let `read` fill tensors without gaps, in order, and put their bytes into the pieces."""
        for piece in cut:
            if is_dense(piece):
                read(piece)
            else:
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
        """Return a row of at most `PIECE_BYTES` as it is on the host: from a device, a copy up to the next call."""
        return row if row.is_cpu else self._row(len(row)).copy_(row)

    def drop(self) -> None:
        """Let go of the buffers."""
        self._spread = self._packed = None

    def _row(self, size_bytes: int) -> torch.Tensor:
        if self._spread is None:
            self._spread = self._spreading(PIECE_BYTES)
        return self._spread[:size_bytes]

    def _packed_row(self, piece: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            self._packed = pageable(PIECE_BYTES)
        return self._packed[: piece.nbytes]
