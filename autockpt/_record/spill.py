"""Saved tensors that wait where there is room, so that a real step never holds its activations.

    forward     pack ── the storage's bytes ──▶ a temporary file (CPU) or the host (devices)
    backward    unpack ◀── a new storage with the same bytes; it dies when its node is done

Each storage is written once, however many views of it are saved, and there is at most one copy of it at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError


class NoRoom(ProfilingError):
    """What a forward saves does not fit into a temporary file."""


class _Store(Protocol):
    """Where bytes wait."""

    def put(self, storage: torch.UntypedStorage) -> Any:
        """Copy a storage's bytes, taking none of its device's memory; return what `get` needs to find them."""

    def get(self, token: Any, storage: torch.UntypedStorage) -> None:
        """Copy them into another storage of that size."""


class _File:
    """A file without a name, which is gone with the process if not before.

    Args:
        file: unbuffered, so that closing it writes nothing and cannot fail.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file, self._end = file, 0

    def put(self, storage: torch.UntypedStorage) -> int:
        place, rest = self._end, _bytes(storage)
        try:
            self._file.seek(place)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise NoRoom(
                f"the step's saved tensors were to wait in a file in {tempfile.gettempdir()}, which took {place} bytes "
                f"and not {storage.nbytes()} more ({error.strerror}). Set TMPDIR to a directory with more room, or "
                "record with mode='forward'."
            ) from error
        self._end += storage.nbytes()
        return place

    def get(self, token: int, storage: torch.UntypedStorage) -> None:
        rest = _bytes(storage)
        self._file.seek(token)
        while rest:
            rest = rest[self._file.readinto(rest) :]


class _Host:
    """Host memory, for storages of a device."""

    def put(self, storage: torch.UntypedStorage) -> torch.Tensor:
        return _flat(storage).cpu()

    def get(self, token: torch.Tensor, storage: torch.UntypedStorage) -> None:
        _flat(storage).copy_(token)


def _bytes(storage: torch.UntypedStorage) -> memoryview:
    """The bytes of a storage on the host, in place."""
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def _flat(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class _SpilledStorage:
    """A storage that autograd saved: itself or a copy of it while anything holds one, else its bytes in the store.

    A gradient may be a part of a copy. Autograd adds nothing to it in place, since Python made the copy; so it is in
    the real step, whose saved storages the recorder looks at from Python.
    """

    def __init__(self, store: _Store, storage: torch.UntypedStorage, version: int) -> None:
        self._store, self._size, self._device = store, storage.nbytes(), storage.device
        self._alive = weakref.ref(storage)
        self._version, self._token = version, store.put(storage)

    def is_of(self, storage: torch.UntypedStorage) -> bool:
        """Whether it stands for this storage, and not for an older one at the same address."""
        return self._alive() is storage

    def refresh(self, storage: torch.UntypedStorage, version: int) -> None:
        """Take the bytes anew if they have changed since."""
        if version != self._version:
            self._version, self._token = version, self._store.put(storage)

    def storage(self) -> torch.UntypedStorage:
        """Return the storage, or a copy if it died."""
        storage = self._alive()
        if storage is None:
            storage = torch.UntypedStorage(self._size, device=self._device)
            self._store.get(self._token, storage)
            self._alive = weakref.ref(storage)
        return storage


class SpilledTensor:
    """What is held instead of a saved tensor."""

    __slots__ = ("_conjugate", "_dtype", "_geometry", "_storage")

    def __init__(self, storage: _SpilledStorage, tensor: torch.Tensor) -> None:
        self._storage = storage
        self._dtype, self._conjugate = tensor.dtype, tensor.is_conj()
        self._geometry = tensor.storage_offset(), tensor.size(), tensor.stride()

    def restore(self) -> torch.Tensor:
        """Return the tensor as it was: its bytes, its place in its storage, its strides."""
        storage = self._storage.storage()
        tensor = torch.empty(0, dtype=self._dtype, device=storage.device).set_(storage, *self._geometry)
        return tensor.conj() if self._conjugate else tensor


class Spill:
    """Takes what autograd saves off the device.

    Args:
        store: where the bytes wait.
        device: whose tensors are spilled.
        held: tensors that the caller holds anyway, which stay.
        room_bytes: of saved storages that may stay where they are, those that are saved first.
    """

    def __init__(
        self, store: _Store, device: torch.device, held: Iterable[torch.Tensor], *, room_bytes: int = 0
    ) -> None:
        self._store, self._device, self._room_bytes = store, device, room_bytes
        self._held = {private.storage_key(tensor) for tensor in held}
        self._staying: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()
        self._spilled: weakref.WeakValueDictionary[int, _SpilledStorage] = weakref.WeakValueDictionary()

    def take(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        """Return what to hold instead of a saved tensor: itself where its bytes do not say all that it is."""
        if tensor.device.type != self._device.type or not _told_by_bytes(tensor):
            return tensor
        key, storage, version = private.storage_key(tensor), tensor.untyped_storage(), private.version(tensor)
        if key in self._held or not storage.nbytes():
            return tensor
        if self._staying.get(key) is storage:
            return tensor
        spilled = self._spilled.get(key)
        if spilled is None or not spilled.is_of(storage):
            if storage.nbytes() <= self._room_bytes:
                self._room_bytes -= storage.nbytes()
                self._staying[key] = storage
                return tensor
            spilled = self._spilled[key] = _SpilledStorage(self._store, storage, version)
        spilled.refresh(storage, version)
        return SpilledTensor(spilled, tensor)


def _told_by_bytes(tensor: torch.Tensor) -> bool:
    """Whether bytes, type, sizes and strides are all that there is to a tensor."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not (tensor.is_neg() or tensor.is_nested or tensor.is_quantized)
    )


@contextlib.contextmanager
def spilling(device: torch.device, held: Iterable[torch.Tensor], *, room_bytes: int = 0) -> Iterator[Spill]:
    """Open a store for the saves of one run on `device`, and close it afterwards; see `Spill`."""
    if device.type != "cpu":
        yield Spill(_Host(), device, held, room_bytes=room_bytes)
        return
    with tempfile.TemporaryFile(prefix="autockpt-", buffering=0) as file:
        yield Spill(_File(file), device, held, room_bytes=room_bytes)
