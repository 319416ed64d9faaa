"""What autograd holds for a member's saved tensors, and what a frame holds of the tensors from outside.

Each knows how to give the tensor back, and refuses if it was changed in place meanwhile, as autograd does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _torch_private

if TYPE_CHECKING:
    from .frame import Frame

__all__ = ["Changed", "Held", "OwnedSlot", "Slot", "check_unchanged"]


class Changed(RuntimeError):
    """A tensor was changed in place between its use in forward and its use in backward."""


class Slot:
    """Stands for a saved tensor that is dropped in forward and comes back with the frame's replay.

    Attributes:
        frame: the frame that can bring it back.
        value: the tensor, after the replay. It lives here and dies with the slot.
    """

    __slots__ = ("__weakref__", "_device", "_dtype", "_node", "_shape", "_stride", "_version", "frame", "value")

    def __init__(self, frame: Frame, tensor: Tensor) -> None:
        self.frame = frame
        self.value: Tensor | None = None
        self._version = 0
        self._shape, self._stride = _torch_private.geometry(tensor)
        self._dtype = tensor.dtype
        self._device = tensor.device
        self._node = type(tensor.grad_fn)

    def difference(self, tensor: Tensor) -> str | None:
        """Say in what the replay's `tensor` differs from what forward saved here; None if in nothing."""
        shape, stride = _torch_private.geometry(tensor)
        if shape != self._shape:
            return f"a tensor of shape {tuple(shape)} instead of {tuple(self._shape)}"
        if stride != self._stride:
            return f"a tensor of strides {stride} instead of {self._stride}"
        if tensor.dtype != self._dtype:
            return f"a tensor of {tensor.dtype} instead of {self._dtype}"
        if tensor.device != self._device:
            return f"a tensor on {tensor.device} instead of {self._device}"
        node = type(tensor.grad_fn)
        # What comes from the boundary has a node in forward and none in the replay.
        if node is not self._node and node is not type(None) and self._node is not type(None):
            return f"a result of {node.__name__} instead of {self._node.__name__}"
        return None

    def fill(self, value: Tensor) -> None:
        """Put the replay's tensor, detached, in its place."""
        self._version = _torch_private.version(value)
        self.value = value

    def tensor(self) -> Tensor:
        """Return the saved tensor, replaying the frame if need be."""
        value = self.value
        if value is None:
            value = self.frame.replayed(self)
        check_unchanged(value, self._version, "a tensor")
        return value


class OwnedSlot:
    """A saved tensor whose storage is a parameter's or a buffer's: that object itself, seen as forward saw it."""

    __slots__ = ("__weakref__", "_owner", "_version", "_view")

    def __init__(self, owner: Tensor, tensor: Tensor) -> None:
        self._owner = owner
        self._version = _torch_private.version(owner)
        self._view: Any = None
        if tensor is owner:
            return
        if tensor.dtype is not owner.dtype or tensor.is_conj() or tensor.is_neg():
            self._view = tensor.detach()
        else:
            self._view = (*_torch_private.geometry(tensor), tensor.storage_offset())

    def tensor(self) -> Tensor:
        """Return the saved tensor."""
        check_unchanged(self._owner, self._version, "a parameter or buffer")
        if self._view is None:
            return self._owner
        if isinstance(self._view, Tensor):
            return self._view
        with torch.no_grad():
            return self._owner.as_strided(*self._view)


class Held:
    """A tensor of the boundary. Detached: with its own `grad_fn` it could lead back to the frame, a leak."""

    __slots__ = ("_packed", "_requires_grad", "_unpack", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._requires_grad = tensor.requires_grad
        self._version = _torch_private.version(tensor)
        self._unpack: Callable[[Any], Tensor] | None = None
        self._packed: Any = tensor.detach()
        hooks = _torch_private.outer_hooks()
        if hooks is not None:  # hooks around the model, such as save_on_cpu, decide where the boundary waits
            pack, self._unpack = hooks
            with torch.no_grad():
                self._packed = pack(self._packed)

    def tensor(self) -> Tensor:
        """Return the tensor as a leaf of a new graph."""
        if self._unpack is not None:
            tensor: Tensor = self._unpack(self._packed)
        else:
            tensor = self._packed
            check_unchanged(tensor, self._version, "a tensor that it reads")
        return tensor.detach().requires_grad_(self._requires_grad)


def check_unchanged(tensor: Tensor, expected: int, what: str) -> None:
    """Refuse a tensor that is not as it was when forward read it, in the words that autograd uses.

    Raises:
        Changed: its version has moved.
    """
    found = _torch_private.version(tensor)
    if found != expected:
        raise Changed(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{what} of a recomputed segment, of shape {tuple(tensor.shape)}, is at version {found}; expected version "
            f"{expected}. Keep the call, or change the tensor only after backward."
        )
