"""The interface of a stash, and what is held instead of a tensor that waits in one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .. import _torch_private as private
from .._calls.layout import told_by_bytes
from .._calls.own_errors import OwnErrors
from .._data.errors import ProfilingError
from .waiting import Waiting


class NoRoom(ProfilingError):
    """There is no room for what a forward saves."""


@dataclass(frozen=True, slots=True)
class Token:
    """A stash's handle for a tensor that it holds; only that stash can use it.

    Attributes:
        place: where the bytes lie in the stash.
        stored_bytes: how many there are.
        process: number of the process that put them, if the stash needs it.
    """

    place: int
    stored_bytes: int
    process: int = 0


class Stash(Protocol):
    """Keeps the bytes of tensors until they are wanted again.

    It may be used from several threads. Copies are over when `put` and `get` return. It closes when its last holder
    drops it, and leaves nothing behind. It does not prefetch: that needs copies that overlap with the device's other
    work, and `get` is called only when the tensor is needed.
    """

    def put(self, tensor: torch.Tensor) -> Token:
        """Copy the elements of a tensor as they are now: views may be written to between two saves.

        Raises:
            NoRoom: there is no room for them.
        """

    def get(self, token: Token, tensor: torch.Tensor) -> None:
        """Copy what waits into a tensor of the same type, sizes and strides whose storage nobody else uses.

        The caller gives the tensor: it knows what the bytes mean, and when memory may be allocated for them. A stash
        knows only bytes. What lies between the tensor's elements may be overwritten.
        """

    def free(self, token: Token) -> None:
        """Free the bytes, so that their room is used again. Garbage collection may call this at any moment."""


class SpilledTensor:
    """A tensor's bytes in a stash, and its sizes and strides; a fake tensor has no bytes."""

    __slots__ = ("__weakref__", "_conjugate", "_device", "_dtype", "_shape", "_stash", "_stride", "_token")

    def __init__(self, stash: Stash, tensor: torch.Tensor) -> None:
        self._stash, self._conjugate = stash, tensor.is_conj()
        self._dtype, self._device = tensor.dtype, tensor.device
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._token: Token | None = None
        if private.fake_mode_of(tensor) is None:
            self._token = stash.put(tensor.conj() if self._conjugate else tensor)

    def __del__(self) -> None:
        if self._token is not None:
            self._stash.free(self._token)

    def restore(self) -> torch.Tensor:
        """Return a new tensor with the same bytes."""
        new = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=self._device)
        if self._token is not None:
            self._stash.get(self._token, new)
        return new.conj() if self._conjugate else new


class SpilledParts(SpilledTensor):
    """What is inside a wrapper, and how to make the wrapper of it; of a DTensor this rank's part."""

    __slots__ = ("_make", "_parts")

    def __init__(
        self, parts: list[SpilledTensor | torch.Tensor], make: Callable[[Sequence[torch.Tensor]], torch.Tensor]
    ) -> None:
        self._token, self._make = None, make
        self._parts = [each if isinstance(each, SpilledTensor) else each.detach() for each in parts]

    def restore(self) -> torch.Tensor:
        return self._make([each.restore() if isinstance(each, SpilledTensor) else each for each in self._parts])


class Spill:
    """Puts what a step saves for backward into a stash.

    Args:
        stash: where the bytes wait.
        device: tensors of other devices stay where they are.
        held: tensors that the step holds anyway. They stay where they are.

    Attributes:
        tell_no_room: is called when the stash has no room. What is saved from then on stays where it is, since other
            ranks wait for this rank's step. None if having no room is an error of the step.
        waiting: the storages of which something was put into the stash.
        errors: where errors of our own work in the step wait, its own among them.
    """

    def __init__(self, stash: Stash, device: torch.device, held: Iterable[torch.Tensor]) -> None:
        self._stash: Stash | None = stash
        self.tell_no_room: Callable[[NoRoom], None] | None = None
        self._device, self.waiting, self.errors = device, Waiting(), OwnErrors()
        self._held = {private.storage_key(tensor) for tensor in held}
        self._last: dict[int, tuple[weakref.ref[torch.Tensor], int, weakref.ref[SpilledTensor]]] = {}

    def take(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        """Return what to hold instead of a saved tensor; the tensor itself if it stays, or is more than its bytes.

        Raises:
            NoRoom: the stash has no room.
        """
        try:
            return self._taken(tensor)
        except NoRoom:
            raise
        except Exception as error:
            self.errors.add(error)
            return tensor

    def _taken(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        if (apart := private.apart(tensor)) is not None:
            waits = [*map(self.take, apart.inside)]
            return SpilledParts(waits, apart.make) if any(isinstance(each, SpilledTensor) for each in waits) else tensor
        stash = self._stash
        if stash is None or tensor.device.type != self._device.type or not told_by_bytes(tensor):
            return tensor
        key = private.storage_key(tensor)  # none in a transform of `torch.func`
        if not key or key in self._held or not tensor.untyped_storage().nbytes():
            return tensor
        if last := self._last.get(id(tensor)):
            reference, version, waiting = last
            if reference() is tensor and version == private.version(tensor) and (known := waiting()) is not None:
                return known
        try:
            spilled = SpilledTensor(stash, tensor)
        except NoRoom as error:
            if self.tell_no_room is None:
                raise
            self.tell_no_room(error)
            self.close()
            return tensor
        self.waiting.add(tensor, spilled)
        self._last[id(tensor)] = weakref.ref(tensor), private.version(tensor), weakref.ref(spilled)
        return spilled

    def close(self) -> None:
        """Release the stash, which closes with the last tensor that waits. What is saved from now on is not moved."""
        self._stash = None
