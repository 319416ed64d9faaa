"""A checksum of a tensor's bits, by position: what a check keeps of a tensor that a frame drops.

    words of eight bytes    w0     w1     ...  w1020      summed by column, over an odd number of rows; each sum is
                            w1021  w1022  ...  w2041      mixed and weighted by its place, and so are the words that
                            ...                           are left: swapped values and flipped signs are seen

On a device words have four bytes, and the numbers that weigh them no pattern, so that nothing has to be mixed: every
kernel is the host's time, and takes a while to launch. There are two to five of them a tensor, and one wait for all
tensors that are compared.

Source: none; a weighted sum by column. Heuristic: tensors that differ have the same one with a chance of
2**-64, or on a device 2**-33 where only signs differ, unless they differ by design. O(bytes), 12 to 30 GB/s on a CPU,
and 6 microseconds a tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from .._calls.layout import bytes_of, flat, is_dense, told_by_bytes
from .._device.present import current_stream
from .._torch_private import here

COLUMNS = 1021
"""A prime: rows of a tensor have round lengths, and so do not fall on the same columns. Their sums fit into a cache."""

_PLACES = 64
"""Checksums that lie in one block of an allocator of devices."""

_ITEMS = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64, 16: numpy.complex128}

Checksum: TypeAlias = "tuple[object, ...] | Tensor"


class Places:
    """Where checksums lie on a device: one by itself would take 512 bytes, and steps over time save thousands."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: dict[object, list[Tensor]] = {}  # by device and stream, in which they are written

    def take(self, device: torch.device) -> Tensor:
        """Return a place for one; who holds it holds its neighbours' memory too."""
        free = self._free.setdefault((device, current_stream()), [])
        if not free:
            free += torch.empty(_PLACES, dtype=torch.int64, device=device).unbind()
        return free.pop()


def checksum_of_saved(tensor: Tensor, places: Places | None = None) -> Checksum | None:
    """Return the checksum of a tensor that was saved; None where its bytes do not say all that it is.

    The workspace of a recurrent layer's kernel (bytes, in one dimension) may be written in part only, and has none.
    """
    tensor = here(tensor)
    is_workspace = tensor.dtype is torch.uint8 and tensor.dim() == 1
    if is_workspace or tensor.is_meta or not told_by_bytes(tensor) or not tensor.numel():
        return None
    if places is None or tensor.is_cpu:
        return checksum_of(tensor)
    return on_device(tensor.detach(), places.take(tensor.device))


def checksum_of(tensor: Tensor) -> Checksum:
    """Return the checksum of a tensor that has bytes.

    On a CPU this takes nothing from torch's allocator, and no mode sees it. On a device the checksum stays there.
    """
    tensor = tensor.detach()
    if not tensor.is_cpu:
        return on_device(tensor)
    octets = numpy.frombuffer(bytes_of(tensor), dtype=numpy.uint8)
    if not is_dense(tensor):
        size, strides = tensor.itemsize, tensor.stride()
        items: Any = octets[: len(octets) // size * size].view(_ITEMS[size])
        octets = as_strided(items, tensor.shape, [size * each for each in strides]).copy().reshape(-1).view(numpy.uint8)
    whole = len(octets) // 8 * 8
    sums = _sums(octets[:whole].view(numpy.int64), _weights())
    return tensor.is_conj(), *map(int, sums), octets[whole:].tobytes()


def on_device(tensor: Tensor, place: Tensor | None = None) -> Tensor:
    """Return the checksum of a tensor that has no graph, as a tensor beside it, or in a place there."""
    words, left = _words(tensor)
    rows = _rows(len(words))
    parts = [words]
    if rows:
        summed = rows * COLUMNS
        parts = [words[:summed].view(rows, COLUMNS).sum(0), words[summed:]]
    if left is not None:
        parts.append(left)
    every = torch.cat(parts) if len(parts) > 1 else words
    weighted = every * _weights_on(tensor.device)[: len(every)]
    return weighted.sum() if place is None else torch.sum(weighted, 0, out=place)


def _words(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the bytes of a tensor as words of four, and those that are left; None where there are none."""
    if tensor.is_contiguous() and not (tensor.nbytes | int(tensor.storage_offset()) * tensor.itemsize) % 4:
        return tensor.resolve_conj().view(-1).view(torch.int32), None
    octets = flat(tensor if is_dense(tensor) else tensor.resolve_conj().contiguous())
    if octets.storage_offset() % 4:
        octets = octets.clone()
    whole = octets.numel() // 4 * 4
    words = octets[:whole].view(torch.int32)
    return words, octets[whole:] if whole < octets.numel() else None


def same(one: Checksum | None, other: Checksum | None) -> bool:
    """Whether two checksums are the same; on a device this waits for it."""
    return all_same([(one, other)])[0]


def all_same(pairs: Sequence[tuple[Checksum | None, Checksum | None]]) -> list[bool]:
    """Whether the two checksums are the same, for each pair; each device is waited for once."""
    found = [one is other or (type(one) is tuple and one == other) for one, other in pairs]
    devices: dict[torch.device, list[tuple[int, Tensor, Tensor]]] = {}
    for number, (one, other) in enumerate(pairs):
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one.device == other.device:
            devices.setdefault(one.device, []).append((number, one, other))
    for every in devices.values():
        with torch.no_grad():
            alike = torch.stack([one for _, one, _ in every]) == torch.stack([other for *_, other in every])
        for (number, *_), same in zip(every, alike.tolist(), strict=True):
            found[number] = same
    return found


def _sums(words: Any, weights: Any) -> list[Any]:
    """Sum words of an array, modulo 2**64."""
    rows = _rows(len(words))
    rest = words[rows * COLUMNS :]
    sums = [(_mixed(rest) * weights[: len(rest)]).sum()]
    if rows:
        columns = words[: rows * COLUMNS].reshape(rows, COLUMNS).sum(0)
        sums.append((_mixed(columns) * weights[:COLUMNS]).sum())
    return sums


def _rows(words: int) -> int:
    """Return how many rows are summed, of so many words; a sign flipped in all would cancel in an even number."""
    rows = words // COLUMNS
    return rows - (rows > 0 and rows % 2 == 0)


def _mixed(words: Any) -> Any:
    """Spread the high bits of words, each onto another word: else two signs that are flipped in them would cancel."""
    return words ^ ((words >> 29) & (2**35 - 1))


@functools.cache
def _weights() -> Any:
    """Odd numbers, as many as words can be left."""
    return numpy.arange(1, 4 * COLUMNS, 2, dtype=numpy.int64) * 0x1E3779B97F4A7C15


@functools.cache
def _weights_on(device: torch.device) -> Tensor:
    """Odd numbers without a pattern, as many as columns and the words and bytes that can be left."""
    numbers = numpy.random.default_rng(0).integers(-(2**63), 2**63 - 1, 3 * COLUMNS + 3)
    return torch.from_numpy(numbers | 1).to(device)
