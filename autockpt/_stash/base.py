"""What a place where tensors wait can do, and what is held instead of a tensor that waits."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from .. import _torch_private as private
from .._calls.layout import told_by_bytes
from .._data.errors import ProfilingError
from .waiting import Waiting


class NoRoom(ProfilingError):
    """What a forward saves fits nowhere."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a stash gives for a tensor; it means something to that stash alone.

    Attributes:
        place: where the bytes lie in the stash.
        stored_bytes: how many there are.
        process: who put them, where a stash minds.
    """

    place: int
    stored_bytes: int
    process: int = 0


class Stash(Protocol):
    """Keeps the bytes of tensors until they are wanted again.

    It may be used from several threads. Copies are over when `put` and `get` return. It closes with the last who holds
    it, and leaves nothing behind. It does not fetch ahead: that needs copies beside the device's other work, and `get`
    is called when the tensor is wanted.
    """

    def put(self, tensor: torch.Tensor) -> Token:
        """Copy the elements of a tensor as they are now: views may be written to between two saves.

        Raises:
            NoRoom: they fit no more.
        """

    def get(self, token: Token, tensor: torch.Tensor) -> None:
        """Copy what waits into a tensor of the same type, sizes and strides whose storage nobody else uses.

        The tensor is given, since who holds a token knows what the bytes mean and when memory may be taken for them. A
        stash knows bytes. What lies between the tensor's elements may be overwritten.
        """

    def free(self, token: Token) -> None:
        """Let go of what waits, so that its room is used again. Garbage collection may call this at any moment."""


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


class SpilledPart(SpilledTensor):
    """The bytes that this rank has of a tensor which lies on several, and what that is."""

    __slots__ = ("_make", "_part")

    def __init__(self, part: SpilledTensor, tensor: torch.Tensor) -> None:
        self._token, self._part, self._make = None, part, private.like(tensor)

    def restore(self) -> torch.Tensor:
        return self._make(self._part.restore())


class Spill:
    """Takes what a step saves for backward.

    Args:
        stash: where the bytes wait.
        device: tensors elsewhere stay where they are.
        held: tensors that the step holds anyway, which stay.

    Attributes:
        tell_no_room: is told where the stash takes no more, and what is saved from then on stays where it is, since
            other ranks wait for this one's step; None where that is an error of the step.
        waiting: the storages of which it has taken something.
    """

    def __init__(self, stash: Stash, device: torch.device, held: Iterable[torch.Tensor]) -> None:
        self._stash: Stash | None = stash
        self.tell_no_room: Callable[[NoRoom], None] | None = None
        self._device, self.waiting = device, Waiting()
        self._held = {private.storage_key(tensor) for tensor in held}
        self._last: dict[int, tuple[weakref.ref[torch.Tensor], int, weakref.ref[SpilledTensor]]] = {}

    def take(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        """Return what to hold instead of a saved tensor: itself where its bytes do not say all that it is.

        Raises:
            NoRoom: the stash takes no more.
        """
        if type(tensor) is not torch.Tensor and (part := private.here(tensor)) is not tensor:
            waits = self.take(part)
            return SpilledPart(waits, tensor) if isinstance(waits, SpilledTensor) else tensor
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
        """Let go of the stash, which closes with the last tensor that waits; what is saved from now on stays."""
        self._stash = None
