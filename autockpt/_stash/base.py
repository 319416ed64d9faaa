"""The interface of a stash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from .._data.errors import ProfilingError


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
