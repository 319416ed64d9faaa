"""Checksums of tensors on a device: one kernel for each tensor, and three for many together.

    tensor    words of eight bytes, in rows that begin `step` words apart    a sum by column: one kernel, no copy
    row       those sums, `columns` of them
    number    both halves of each sum, weighted by their places; their sum   three kernels for all rows that wait

The steps are primes: rows of a tensor have round lengths, so they do not line up with the columns. A row is a little
longer than the step, so that the last one ends where the tensor does, and no word is left over. The number of rows is
odd, since a flip of all signs would cancel in an even one.

Words have eight bytes because torch would copy shorter ones to eight before it sums them. A tensor of which some bytes
do not fill a word takes a second kernel. One with gaps between its elements is copied first, as is one that begins
inside a word.

What it misses: differences that cancel in every column, as of two words that are swapped and lie a multiple of the step
apart. Two random words of eight bytes do so with probability 1 / step, at most 1 / 521; two values of four bytes with
half of that. Sums are modulo 2**64: in one column an even number of changed highest bits cancels. Two tensors whose
columns differ have the same number with probability 2**-63, or 2**-32 if only the highest bits of halves differ.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from .._torch.devices.present import current_stream, in_stream
from .._torch.private import StreamNumbers
from .layout import flat, is_dense

SHORTEST, LONGEST = 521, 1021
"""The steps are the primes from the one to the other."""

MOST_COPIED = 3 * SHORTEST
"""So many words are no sum, but a copy: they would make less than three rows."""

_NUMBERS = 64
"""How many numbers share one block of a device's allocator, which would take 512 bytes for each."""

_BLOCK_BYTES = 512

_FEW_BYTES = 1 << 12
"""How many bytes of rows wait at most, or the largest tensor's bytes shifted by `_SHARE`, if that is more. To become
numbers, they are copied, and multiplied into twice their bytes: all together stays below 1 % of the largest tensor."""

_SHARE = 9

_LEAST_BYTES = 1 << 11
"""As a call ends, so few bytes of rows still wait: three kernels for two or three tensors are too many."""


class Layout(NamedTuple):
    """How words lie in rows: row *i* has the words from *i* · `step` on, `columns` of them."""

    rows: int
    columns: int
    step: int


class Places:
    """Makes checksums on devices: rows of sums wait until they become numbers, many together."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[tuple[torch.device, StreamNumbers | None], _Rows] = {}

    def take(self, tensor: Tensor) -> Tensor:
        """Return the place of the checksum of a tensor without graph, as it is now.

        The checksum is there once `settle` was called. While the place is held, its whole block stays allocated.
        """
        key = tensor.device, current_stream()
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Rows()
        return waiting.add(_row(tensor), tensor)

    def settle(self, least_bytes: int = 0) -> None:
        """Make the numbers of all rows that wait, in the streams that wrote these, unless they have few bytes."""
        for (_, stream), waiting in self._waiting.items():
            if waiting.size_bytes > least_bytes:
                with in_stream(stream):
                    waiting.settle()

    def call_ends(self) -> None:
        """Make the numbers of the rows that wait, unless these are few."""
        self.settle(_LEAST_BYTES)


class _Rows:
    """Rows of one device and stream, and the memory of their numbers."""

    __slots__ = ("_block", "_free", "_largest_bytes", "_rows", "_widest_bytes")

    def __init__(self) -> None:
        self._rows: list[Sequence[Tensor]] = []
        self._widest_bytes, self._largest_bytes = 0, 0
        self._block: Tensor | None = None
        self._free: list[Tensor] = []

    @property
    def size_bytes(self) -> int:
        """What the rows take at most; to become numbers, they take three times as much besides."""
        return len(self._rows) * self._widest_bytes

    def add(self, row: Sequence[Tensor], tensor: Tensor) -> Tensor:
        """Have the row of a tensor wait, and return the place of its number."""
        self._largest_bytes = max(self._largest_bytes, tensor.nbytes)
        most_bytes = max(_FEW_BYTES, self._largest_bytes >> _SHARE)
        widest_bytes = max(self._widest_bytes, _BLOCK_BYTES, sum(each.nbytes for each in row))
        if (len(self._rows) + 1) * widest_bytes > most_bytes or not self._free:
            self.settle()
            widest_bytes = max(_BLOCK_BYTES, sum(each.nbytes for each in row))
        if not self._free:
            self._block = torch.empty(_NUMBERS, dtype=torch.int64, device=tensor.device)
            self._free = [*self._block.unbind()]
        self._widest_bytes = widest_bytes
        self._rows.append(row)
        return self._free.pop(0)

    def settle(self) -> None:
        """Make the numbers of the rows."""
        rows, self._rows, self._widest_bytes = self._rows, [], 0
        if rows and self._block is not None:
            end = _NUMBERS - len(self._free)
            _number(rows, self._block[end - len(rows) : end])


def on_device(tensor: Tensor) -> Tensor:
    """Return the checksum of a tensor without graph, as a tensor on its device."""
    number = torch.empty(1, dtype=torch.int64, device=tensor.device)
    _number([_row(tensor)], number)
    return number[0]


@functools.lru_cache(1 << 12)
def layout_of(size_bytes: int) -> Layout:
    """Return how the words of so many bytes are laid out in rows, so that the rows overlap least."""
    words = size_bytes // 8
    if words <= MOST_COPIED:
        return Layout(1, words, words)
    steps = _steps()
    rows = words // steps
    rows -= rows % 2 == 0
    # A step that divides the whole may divide the rows of the tensor too.
    left = numpy.where((rows >= 3) & (size_bytes % steps != 0), words - rows * steps, words)
    least = int(left.argmin())
    step = int(steps[least])
    return Layout(int(rows[least]), step + int(left[least]), step)


@functools.cache
def _steps() -> Any:
    every = range(SHORTEST, LONGEST + 1, 2)
    return numpy.array([each for each in every if all(each % divisor for divisor in range(3, 46, 2))])


def _row(tensor: Tensor) -> Sequence[Tensor]:
    """Return the sums by column of a tensor, and its last bytes if some do not fill a word; in memory of their own."""
    size_bytes = tensor.numel() * tensor.itemsize
    whole = size_bytes // 8 * 8
    if whole == size_bytes and tensor.is_contiguous() and not int(tensor.storage_offset()) * tensor.itemsize % 8:
        return [_columns(tensor.resolve_conj().view(-1).view(torch.int64), size_bytes)]
    octets = flat(tensor if is_dense(tensor) else tensor.resolve_conj().contiguous())
    if octets.storage_offset() % 8:
        octets = octets.clone()
    size_bytes = len(octets)
    whole = size_bytes // 8 * 8
    if not whole:
        word = torch.zeros(8, dtype=torch.uint8, device=tensor.device)
        word[:size_bytes].copy_(octets)
        return [word.view(torch.int64)]
    row = [_columns(octets[:whole].view(torch.int64), size_bytes)]
    if whole < size_bytes:
        row.append(octets[-8:].clone().view(torch.int64))
    return row


def _columns(words: Tensor, size_bytes: int) -> Tensor:
    rows, columns, step = layout_of(size_bytes)
    return words.as_strided((rows, columns), (step, 1)).sum(0) if rows > 1 else words.clone()


def _number(rows: Sequence[Sequence[Tensor]], numbers: Tensor) -> None:
    """Write the numbers that some rows come to. It may write into the rows."""
    lengths = [sum(map(len, row)) for row in rows]
    weights, zero = _weights_on(numbers.device)
    widest = max(lengths)
    parts: list[Tensor] = []
    for row, length in zip(rows, lengths, strict=True):
        parts += row
        if length < widest:
            parts.append(zero.expand(widest - length))
    matrix = (torch.cat(parts) if len(parts) > 1 else parts[0]).view(len(rows), widest)
    # Halves of sums: a random number times the highest bit of a whole one is that bit, and two of these would cancel.
    torch.sum(matrix.view(torch.int32) * weights[: 2 * widest], 1, out=numbers)


@functools.cache
def _weights_on(device: torch.device) -> tuple[Tensor, Tensor]:
    """Random odd numbers, two for each column and two for the last bytes; and a zero."""
    most = MOST_COPIED + 1
    numbers = numpy.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2 * most)
    return torch.from_numpy(numbers | 1).to(device), torch.zeros(1, dtype=torch.int64, device=device)


def alike(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return for each pair of checksums of a device whether they are the same, as a tensor there."""
    ones, others = zip(*pairs, strict=True)
    with torch.no_grad():
        return torch.stack(ones) == torch.stack(others)
