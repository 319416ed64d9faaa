"""A position-dependent checksum of a tensor's bits: what a check keeps of a tensor that a frame drops.

    words of eight bytes    w0     w1     ...  w1020      summed by column, over an odd number of rows; each sum is
                            w1021  w1022  ...  w2041      mixed and weighted by its place, and so are the words that
                            ...                           are left: swapped values and flipped signs are seen

`columns.py` has the same for devices, where each kernel costs the host time.

Source: none; a weighted sum by column. Heuristic: two different tensors have the same checksum with probability 2**-64
(`columns.py` says what it is on a device); tensors that were made to collide are not found. O(bytes): 12 to 30 GB/s on
a CPU, and 6 microseconds a tensor; below one where it is small.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from .._torch.private import apart
from .columns import Places, alike, on_device
from .layout import bytes_of, is_dense, told_by_bytes

COLUMNS = 1021
"""A prime: rows of a tensor have round lengths, so they do not line up with the columns. The sums fit into a cache."""

FEW_BYTES = 4096
"""On a CPU the checksum of a tensor of up to so many bytes is a copy of them, which takes a tenth of the time."""

_sum = numpy.add.reduce

_ODD = 0x1E3779B97F4A7C15

_ITEMS = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64, 16: numpy.complex128}

Checksum: TypeAlias = "tuple[object, ...] | Tensor"

Pair: TypeAlias = "tuple[Checksum | None, Checksum | None]"


def checksum_of_saved(tensor: Tensor, places: Places | None = None) -> Checksum | None:
    """Return the checksum of a saved tensor; None if its bytes do not define it.

    A recurrent layer's workspace (uint8, one dimension) has none either: its kernel may leave part of it unwritten.
    """
    if (taken := apart(tensor)) is not None:
        alone = places if len(taken.inside) == 1 else None  # several become one number, so none of them can wait
        found = (checksum_of_saved(part, alone) for part in taken.inside)
        return _together([each for each in found if each is not None])
    is_workspace = tensor.dtype is torch.uint8 and tensor.dim() == 1
    if is_workspace or tensor.is_meta or not told_by_bytes(tensor) or not tensor.numel():
        return None
    return checksum_of(tensor, places)


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


def checksum_of(tensor: Tensor, places: Places | None = None) -> Checksum:
    """Return the checksum of a tensor that has bytes.

    On a CPU this allocates nothing from torch, and no torch mode sees it. On a device the checksum stays there. With
    `places` it is in one of these, once they are settled.
    """
    tensor = tensor.detach()
    if not tensor.is_cpu:
        return on_device(tensor) if places is None else places.take(tensor)
    if tensor.nbytes <= FEW_BYTES and tensor.is_contiguous():
        return tensor.is_conj(), ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
    octets = numpy.frombuffer(bytes_of(tensor), dtype=numpy.uint8)
    if not is_dense(tensor):
        size, strides = tensor.itemsize, tensor.stride()
        items: Any = octets[: len(octets) // size * size].view(_ITEMS[size])
        octets = as_strided(items, tensor.shape, [size * each for each in strides]).copy().reshape(-1).view(numpy.uint8)
    whole = len(octets) // 8 * 8
    sums = _sums(octets[:whole].view(numpy.int64), _weights())
    return tensor.is_conj(), *map(int, sums), octets[whole:].tobytes()


def number_of(row: Tensor) -> Tensor:
    """Return the checksum of a row of bytes as an int64 tensor of one element on its device, which ranks can gather."""
    row = row.detach()
    if row.is_cpu:
        digest = hashlib.blake2b(repr(checksum_of(row)).encode(), digest_size=8).digest()
        return torch.frombuffer(bytearray(digest), dtype=torch.int64)
    return on_device(row).view(1)


def same(one: Checksum | None, other: Checksum | None) -> bool:
    """Whether two checksums are the same. For checksums on a device this waits for the device."""
    return all_same([(one, other)])[0]


def all_same(pairs: Sequence[Pair]) -> list[bool]:
    """Return for each pair whether its two checksums are the same. Waits once for each device."""
    found, later = same_so_far(pairs)
    for numbers, verdicts in later:
        for number, same in zip(numbers, verdicts.tolist(), strict=True):
            found[number] = same
    return found


def same_so_far(pairs: Sequence[Pair]) -> tuple[list[bool], list[tuple[list[int], Tensor]]]:
    """Return for each pair whether its two checksums are the same, without a wait for any device.

    Returns:
        For each pair whether it is known to be the same; and of each device the numbers of the pairs of which only the
        device knows, with a tensor that says it there.
    """
    found = [one is other or (type(one) is tuple and one == other) for one, other in pairs]
    devices: dict[torch.device, dict[int, tuple[Tensor, Tensor]]] = {}
    for number, (one, other) in enumerate(pairs):
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one.device == other.device:
            devices.setdefault(one.device, {})[number] = one, other
    return found, [(list(every), alike(every.values())) for every in devices.values()]


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
