"""Saved tensors that wait where there is room, so that a recorded step never holds its activations.

    forward     pack ── the tensor's bytes ──▶ memory or a temporary file (CPU), pinned memory of the host (devices)
    backward    unpack ◀── a new tensor with the same bytes; it dies when its node is done

Each tensor is written as it is when it is saved: views of one storage may be written to between two saves, and not
every write counts as a version of all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy
import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError


class NoRoom(ProfilingError):
    """What a forward saves does not fit into a temporary file."""


class Store(Protocol):
    """Where bytes wait."""

    def put(self, tensor: torch.Tensor) -> Any:
        """Copy a tensor's bytes, taking none of its device's memory; return what `get` needs to find them."""

    def get(self, token: Any, tensor: torch.Tensor) -> None:
        """Copy them into another tensor of the same sizes and strides."""


class _File:
    """A file without a name, which is gone with the process if not before.

    Args:
        file: unbuffered, so that closing it writes nothing and cannot fail.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file, self._end = file, 0

    def put(self, tensor: torch.Tensor) -> int:
        place, rest = self._end, bytes_of(tensor)
        try:
            self._file.seek(place)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise NoRoom(
                f"the step's saved tensors wait in a file in {tempfile.gettempdir()}, which took {place:,} bytes and "
                f"not {_span_bytes(tensor):,} more ({error.strerror}). Set TMPDIR to a folder with more room."
            ) from error
        self._end += _span_bytes(tensor)
        return place

    def get(self, token: int, tensor: torch.Tensor) -> None:
        rest = bytes_of(tensor)
        self._file.seek(token)
        while rest:
            rest = rest[self._file.readinto(rest) :]


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
        """A tensor's bytes, which a device copies without memory of its own.

        On a CPU its elements, where others lie between them: queries beside keys and values.
        """
        return tensor.detach() if tensor.is_cpu and _span_bytes(tensor) > tensor.nbytes else _flat(tensor)


class _Nowhere:
    """For tensors that have no bytes."""

    def put(self, tensor: torch.Tensor) -> None:
        return None

    def get(self, token: None, tensor: torch.Tensor) -> None:
        return None


def _span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the host, in place."""
    return memoryview((ctypes.c_char * _span_bytes(tensor)).from_address(tensor.data_ptr())).cast("B")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    begin, empty = tensor.storage_offset() * tensor.itemsize, torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), begin, (_span_bytes(tensor),), (1,))


class SpilledTensor:
    """A tensor's bytes in a store, and its sizes and strides."""

    def __init__(self, store: Store, tensor: torch.Tensor) -> None:
        self._store, self._conjugate = store, tensor.is_conj()
        self._token = store.put(tensor.conj() if self._conjugate else tensor)
        self._dtype, self._device = tensor.dtype, tensor.device
        self._shape, self._stride = tensor.shape, tensor.stride()

    def restore(self) -> torch.Tensor:
        """Return a new tensor with the same bytes."""
        new = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=self._device)
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
        if tensor.device.type != self._device.type or not _told_by_bytes(tensor):
            return tensor
        if private.storage_key(tensor) in self._held or not tensor.untyped_storage().nbytes():
            return tensor
        if last := self._last.get(id(tensor)):
            reference, version, waiting = last
            if reference() is tensor and version == private.version(tensor) and (known := waiting()) is not None:
                return known
        spilled = SpilledTensor(self._store, tensor)
        self._last[id(tensor)] = weakref.ref(tensor), private.version(tensor), weakref.ref(spilled)
        return spilled


def _told_by_bytes(tensor: torch.Tensor) -> bool:
    """Whether bytes, type, sizes and strides are all that there is to a tensor."""
    return (
        (type(tensor) in (torch.Tensor, torch.nn.Parameter) or private.fake_mode_of(tensor) is not None)
        and tensor.layout == torch.strided
        and not (tensor.is_neg() or tensor.is_nested or tensor.is_quantized or tensor._is_zerotensor())
    )


@contextlib.contextmanager
def spilling(
    device: torch.device, held: Iterable[torch.Tensor], *, fake: bool = False, roomy: bool = False
) -> Iterator[Spill]:
    """Open a store for the saves of one run on `device`, and close it afterwards; see `Spill`.

    Args:
        device: where the step runs.
        held: tensors that the step holds anyway.
        fake: whether the step's tensors have no bytes.
        roomy: whether there is room for all that a plain step holds.

    Raises:
        NoRoom: there is no temporary folder; later, where the file takes no more.
    """
    if fake or roomy or device.type != "cpu":
        yield Spill(_Nowhere() if fake else _Host(), device, held)
        return
    try:
        file = tempfile.TemporaryFile(prefix="autockpt-", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise NoRoom(
            f"the step's saved tensors wait in a temporary file, and none can be made ({error}). "
            "Set TMPDIR to a folder that can be written to."
        ) from error
    with file:
        yield Spill(_File(file), device, held)
