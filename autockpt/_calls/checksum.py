"""A position-dependent checksum of a tensor's bits: what a check keeps of a tensor that a frame drops.

    words of eight bytes    w0     w1     ...  w1020      summed by column, over an odd number of rows; each sum is
                            w1021  w1022  ...  w2041      mixed and weighted by its place, and so are the words that
                            ...                           are left: swapped values and flipped signs are seen

On a device words have four bytes. The weights there are random, so mixing is not needed: it would be one more kernel,
and each launch costs the host time. A tensor takes two to five kernels. A comparison of many tensors waits for the
device once.

Source: none; a weighted sum by column. Heuristic: two different tensors have the same checksum with probability 2**-64,
or 2**-33 on a device if only signs differ; tensors that were made to collide are not found. O(bytes): 12 to 30 GB/s on
a CPU, and 6 microseconds a tensor.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from .._device.present import current_stream
from .._torch_private import apart
from .layout import bytes_of, flat, is_dense, told_by_bytes

COLUMNS = 1021
"""A prime: rows of a tensor have round lengths, so they do not line up with the columns. The sums fit into a cache."""

_PLACES = 64
"""How many checksums share one block of a device's allocator."""

_sum = numpy.add.reduce

_PIECE_BYTES = 1 << 24

_ODD = 0x1E3779B97F4A7C15

_ITEMS = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64, 16: numpy.complex128}

Checksum: TypeAlias = "tuple[object, ...] | Tensor"


class Places:
    """Memory for checksums on a device, many to a block: a block of its own would take 512 bytes for each."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: dict[object, list[Tensor]] = {}  # by device, and the stream that writes them

    def take(self, device: torch.device) -> Tensor:
        """Return the place of one checksum. While it is held, its whole block stays allocated."""
        free = self._free.setdefault((device, current_stream()), [])
        if not free:
            free += torch.empty(_PLACES, dtype=torch.int64, device=device).unbind()
        return free.pop()


def checksum_of_saved(tensor: Tensor, places: Places | None = None) -> Checksum | None:
    """Return the checksum of a saved tensor; None if its bytes do not define it.

    A recurrent layer's workspace (uint8, one dimension) has none either: its kernel may leave part of it unwritten.
    """
    if (taken := apart(tensor)) is not None:
        return _together(
            [each for each in (checksum_of_saved(part, places) for part in taken.inside) if each is not None]
        )
    is_workspace = tensor.dtype is torch.uint8 and tensor.dim() == 1
    if is_workspace or tensor.is_meta or not told_by_bytes(tensor) or not tensor.numel():
        return None
    if places is None or tensor.is_cpu:
        return checksum_of(tensor)
    return on_device(tensor.detach(), places.take(tensor.device))


def _together(sums: list[Checksum]) -> Checksum | None:
    """Return one checksum for those of the tensors inside a wrapper; None if there are none."""
    if len(sums) < 2:
        return sums[0] if sums else None
    on_host = tuple(each for each in sums if isinstance(each, tuple))
    found = [each for each in sums if isinstance(each, Tensor)]
    if not found:
        return on_host
    number = int(hashlib.blake2b(repr(on_host).encode(), digest_size=4).hexdigest(), 16)
    return functools.reduce(lambda whole, each: whole * _ODD + each, found[1:], found[0] + number)


def checksum_of(tensor: Tensor) -> Checksum:
    """Return the checksum of a tensor that has bytes.

    On a CPU this allocates nothing from torch, and no torch mode sees it. On a device the checksum stays there.
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
    """Return the checksum of a tensor without graph, as a tensor on its device: in `place`, or a new one."""
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


def number_of(row: Tensor) -> Tensor:
    """Return the checksum of a row of bytes as a number: a tensor with one element, where the row is.

    On a device it is made piece by piece, since the sum of a piece takes twice its bytes.
    """
    row = row.detach()
    if row.is_cpu:
        digest = hashlib.blake2b(repr(checksum_of(row)).encode(), digest_size=8).digest()
        return torch.frombuffer(bytearray(digest), dtype=torch.int64)
    found = torch.zeros(1, dtype=torch.int64, device=row.device)
    for piece in row.split(_PIECE_BYTES):
        found = found * _ODD + on_device(piece)
    return found


def _words(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the bytes of a tensor as words of four bytes, and the bytes left over; None if none are."""
    if tensor.is_contiguous() and not (tensor.nbytes | int(tensor.storage_offset()) * tensor.itemsize) % 4:
        return tensor.resolve_conj().view(-1).view(torch.int32), None
    octets = flat(tensor if is_dense(tensor) else tensor.resolve_conj().contiguous())
    if octets.storage_offset() % 4:
        octets = octets.clone()
    whole = octets.numel() // 4 * 4
    words = octets[:whole].view(torch.int32)
    return words, octets[whole:] if whole < octets.numel() else None


def same(one: Checksum | None, other: Checksum | None) -> bool:
    """Whether two checksums are the same. For checksums on a device this waits for the device."""
    return all_same([(one, other)])[0]


def all_same(pairs: Sequence[tuple[Checksum | None, Checksum | None]]) -> list[bool]:
    """Return for each pair whether its two checksums are the same. Waits once for each device."""
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
    sums = [_sum(_mixed(rest) * weights[: len(rest)])]  # the method of arrays goes through Python
    if rows:
        columns = _sum(words[: rows * COLUMNS].reshape(rows, COLUMNS), 0)
        sums.append(_sum(_mixed(columns) * weights[:COLUMNS]))
    return sums


def _rows(words: int) -> int:
    """Return how many rows are summed: an odd number, since a flip of all signs would cancel in an even one."""
    rows = words // COLUMNS
    return rows - (rows > 0 and rows % 2 == 0)


def _mixed(words: Any) -> Any:
    """Mix the high bits of each word into its lower ones: else two flipped signs would cancel in a sum."""
    return words ^ ((words >> 29) & (2**35 - 1))


@functools.cache
def _weights() -> Any:
    """Odd numbers, one for each column or word left over."""
    return numpy.arange(1, 4 * COLUMNS, 2, dtype=numpy.int64) * _ODD


@functools.cache
def _weights_on(device: torch.device) -> Tensor:
    """Random odd numbers, one for each column, word left over and byte left over."""
    numbers = numpy.random.default_rng(0).integers(-(2**63), 2**63 - 1, 3 * COLUMNS + 3)
    return torch.from_numpy(numbers | 1).to(device)
