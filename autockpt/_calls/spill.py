"""Saved tensors that wait where there is room, so that a recorded step never holds its activations.

    forward     pack ── the tensor's bytes ──▶ memory or a temporary file (CPU), pinned memory of the host (devices)
    backward    unpack ◀── a new tensor with the same bytes; it dies when its node is done

Each tensor is written as it is when it is saved: views of one storage may be written to between two saves, and not
every write counts as a version of all of them.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy
import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError


class NoRoom(ProfilingError):
    """What a forward saves does not fit into a temporary file."""


class _File:
    """A file without a name, which is gone with the last of what waits in it, and with the process if not before.

    Args:
        descriptor: of the file, for this alone.
    """

    def __init__(self, descriptor: int) -> None:
        self._end = 0
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def put(self, tensor: torch.Tensor) -> int:
        place, rest = self._end, bytes_of(tensor)
        self._end += len(rest)
        try:
            while rest:
                rest = rest[os.pwrite(self._descriptor, rest, self._end - len(rest)) :]
        except OSError as error:
            raise NoRoom(
                f"the step's saved tensors wait in a file in {tempfile.gettempdir()}, which took {place:,} bytes and "
                f"not {span_bytes(tensor):,} more ({error.strerror}). Set TMPDIR to a folder with more room."
            ) from error
        return place

    def get(self, token: int, tensor: torch.Tensor) -> None:
        rest = bytes_of(tensor)
        end = token + len(rest)
        while rest:
            rest = rest[os.preadv(self._descriptor, [rest], end - len(rest)) :]


class _Host:
    """Memory of the host, pinned for tensors of a device, where it can be.

    For those of a CPU it is not of torch's allocator, on whose tape a graph that outlives the step would leave it. It
    takes a fraction of a file's time: pages that the steps before let go of are used again.
    """

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        source = self._as_copied(tensor)
        try:
            host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True) if not source.is_cpu else None
        except RuntimeError:
            host = None
        if host is None:
            host = torch.from_numpy(numpy.empty(source.nbytes, numpy.uint8)).view(source.dtype).view(source.shape)
        return host.copy_(source)

    def get(self, token: torch.Tensor, tensor: torch.Tensor) -> None:
        self._as_copied(tensor).copy_(token)

    @staticmethod
    def _as_copied(tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's bytes, which a device copies without memory of its own; on a CPU its elements, if need be."""
        return flat(tensor) if is_dense(tensor) or not tensor.is_cpu else tensor.detach()


Store: TypeAlias = _File | _Host


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether nothing lies between a tensor's elements, as values do between queries and keys."""
    return span_bytes(tensor) <= tensor.nbytes


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the host, in place."""
    return memoryview((ctypes.c_char * span_bytes(tensor)).from_address(tensor.data_ptr())).cast("B")


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, in place, as a tensor."""
    begin, empty = tensor.storage_offset() * tensor.itemsize, torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), begin, (span_bytes(tensor),), (1,))


class SpilledTensor:
    """A tensor's bytes in a store, and its sizes and strides; a fake tensor has no bytes."""

    def __init__(self, store: Store, tensor: torch.Tensor) -> None:
        self._store = store if private.fake_mode_of(tensor) is None else None
        self._conjugate = tensor.is_conj()
        self._token: Any = self._store and self._store.put(tensor.conj() if self._conjugate else tensor)
        self._dtype, self._device = tensor.dtype, tensor.device
        self._shape, self._stride = tensor.shape, tensor.stride()

    def restore(self) -> torch.Tensor:
        """Return a new tensor with the same bytes."""
        new = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=self._device)
        if self._store:
            self._store.get(self._token, new)
        return new.conj() if self._conjugate else new


class Spill:
    """Takes what a step saves for backward.

    Args:
        store: where the bytes wait.
        device: tensors elsewhere stay where they are.
        held: tensors that the step holds anyway, which stay.
    """

    def __init__(self, store: Store, device: torch.device, held: Iterable[torch.Tensor]) -> None:
        self._store, self._device = store, device
        self._held = {private.storage_key(tensor) for tensor in held}
        self._last: dict[int, tuple[weakref.ref[torch.Tensor], int, weakref.ref[SpilledTensor]]] = {}

    def take(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        """Return what to hold instead of a saved tensor: itself where its bytes do not say all that it is."""
        if tensor.device.type != self._device.type or not told_by_bytes(tensor):
            return tensor
        key = private.storage_key(tensor)  # none in a transform of `torch.func`
        if not key or key in self._held or not tensor.untyped_storage().nbytes():
            return tensor
        if last := self._last.get(id(tensor)):
            reference, version, waiting = last
            if reference() is tensor and version == private.version(tensor) and (known := waiting()) is not None:
                return known
        spilled = SpilledTensor(self._store, tensor)
        self._last[id(tensor)] = weakref.ref(tensor), private.version(tensor), weakref.ref(spilled)
        return spilled


def told_by_bytes(tensor: torch.Tensor) -> bool:
    """Whether bytes, type, sizes and strides are all that there is to a tensor."""
    return (
        (type(tensor) in (torch.Tensor, torch.nn.Parameter) or private.fake_mode_of(tensor) is not None)
        and tensor.layout == torch.strided
        and not (tensor.is_neg() or tensor.is_nested or tensor.is_quantized or tensor._is_zerotensor())
    )


def open_spill(device: torch.device, held: Iterable[torch.Tensor], *, roomy: bool = False) -> Spill:
    """Open a store for the saves of one run on `device`, which is gone with the last of them; see `Spill`.

    Args:
        device: where the step runs.
        held: tensors that the step holds anyway.
        roomy: whether there is room for all that a plain step holds.

    Raises:
        NoRoom: there is no temporary folder; later, where the file takes no more.
    """
    if roomy or device.type != "cpu":
        return Spill(_Host(), device, held)
    try:
        with tempfile.TemporaryFile(prefix="autockpt-", buffering=0) as file:
            descriptor = os.dup(file.fileno())
    except OSError as error:
        raise NoRoom(
            f"the step's saved tensors wait in a temporary file, and none can be made ({error}). "
            "Set TMPDIR to a folder that can be written to."
        ) from error
    return Spill(_File(descriptor), device, held)
