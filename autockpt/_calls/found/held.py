"""Tensors that are held from forward to backward, without their graph: it could lead back to the frame.

    Detached    the tensor itself is held: of the boundary, returned by a kept unit, or saved by one
    Packed      a tensor of the boundary: saved-tensor hooks around the model hold it, such as `save_on_cpu`
    Handed      a tensor of the boundary of a call inside another frame, which brings it back

A tensor that was changed in place meanwhile is refused, as by autograd; but not if the hooks hold a copy.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..._torch import private
from ..values import tensors

Tags: TypeAlias = list[tuple[str, Any]]
"""Python attributes of a tensor, by name."""


class Changed(RuntimeError):
    """A tensor was changed in place between its use in forward and its use in backward."""


READ = "a tensor that it reads"
"""What errors call a tensor of the boundary that was changed in place."""

BOUNDARY = -1
"""`Ref.call` of a tensor that the boundary holds. `Ref.leaf` is its number there."""


class Ref(NamedTuple):
    """Where a replay finds a tensor: leaf number `leaf` of what the frame's call number `call` returned."""

    call: int
    leaf: int


class Detached:
    """Holds a tensor without its graph. The graph could lead back to the frame: a cycle that no collector sees.

    A tensor that has no graph is held itself, with its class and its attributes.
    """

    __slots__ = ("_kind", "_requires_grad", "_tags", "_tensor", "_version", "_what")

    def __init__(self, tensor: Tensor, what: str) -> None:
        """Take a tensor; `what` names it in the error about a change in place."""
        self._what = what
        try:  # as `version`, without a call: this runs for every tensor that a call is given
            self._version = tensor._version
        except RuntimeError:
            self._version = -1
        self._requires_grad = tensor.requires_grad
        self._tags: Tags | None = None
        self._tensor = tensor
        if tensor.grad_fn is not None:
            self._kind = type(tensor)
            self._tags = tags_of(tensor)
            self._tensor = tensor.detach()

    @private.never_compiled
    def tensor(self) -> Tensor:
        """Return the tensor for autograd, which saved it."""
        tensor = self._tensor
        # An inference tensor counts no versions, and `check_unchanged` knows that.
        if self._version < 0 or tensor._version != self._version:
            check_unchanged(tensor, self._version, self._what)
        return tensor

    def let_go(self) -> None:
        """Drop what was brought back for a replay, if it can be brought back again: here, nothing."""

    def leaf(self) -> Tensor:
        """Return the tensor as a leaf of a new graph."""
        tensor = self.tensor()
        if self._tags is not None:
            return leaf_of(tensor, self._kind, self._requires_grad, self._tags)
        if tensor.requires_grad is not self._requires_grad:  # it was set since
            return leaf_of(tensor, type(tensor), self._requires_grad, tags_of(tensor))
        return tensor


class Packed(Detached):
    """A tensor of the boundary that is held where the saved-tensor hooks around the model put it.

    `_copied` says whether what the hooks hold is a copy, from which they bring back the same values. Then the tensor
    itself is not held.
    """

    __slots__ = ("_copied", "_geometry", "_packed", "_unpack")

    def __init__(self, tensor: Tensor, hooks: private.Hooks) -> None:
        super().__init__(tensor, READ)
        self._kind, self._tags = type(tensor), tags_of(tensor)
        self._geometry = private.geometry(tensor)
        pack, self._unpack = hooks
        with torch.no_grad():
            self._packed = pack(tensor.detach())
        storage = private.storage_key(tensor)
        self._copied = not any(private.storage_key(part) == storage for part in tensors(self._packed))
        if self._copied and not private.only_move(hooks):
            with torch.no_grad():  # hooks may round, and then a replay needs the tensor itself
                self._copied = _same(self._unpack(self._packed), tensor.detach())
            if not self._copied:
                self._packed = self._tensor
                self._unpack = lambda held: held
        if self._copied:
            del self._tensor  # so it may be changed, and freed

    def leaf(self) -> Tensor:
        """Return the tensor as a leaf of a new graph."""
        if not self._copied:  # a copy cannot have been changed in place
            self.tensor()  # raises if the tensor was
        tensor = self._unpack(self._packed)
        if private.geometry(tensor) != self._geometry:
            tensor = _laid_out(tensor.detach(), *self._geometry)
        return leaf_of(tensor, self._kind, self._requires_grad, self._tags or [])


class Handed(Detached):
    """A tensor of the boundary that hooks of ours around the call hold, like anything that the call saves.

    They belong to a frame around this one, or to a recorded step. A parameter is held itself beside that.
    """

    __slots__ = ("_packed", "_unpack")

    def __init__(self, tensor: Tensor, hooks: private.Hooks) -> None:
        """Take a tensor, and the hooks: they pack it without its graph."""
        super().__init__(tensor, READ)
        pack, self._unpack = hooks
        self._packed = pack(tensor.detach())
        if type(tensor) is not torch.nn.Parameter:
            self._kind, self._tags = type(tensor), tags_of(tensor)
            del self._tensor

    @private.never_compiled
    def tensor(self) -> Tensor:
        """Return the tensor without its graph."""
        return super().tensor() if self._tags is None else self._unpack(self._packed)

    def leaf(self) -> Tensor:
        """Return the tensor as a leaf of a new graph."""
        if self._tags is None:
            return super().leaf()
        return leaf_of(self.tensor(), self._kind, self._requires_grad, self._tags)


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same values; what is no number is the same as itself."""
    if (tensor.dtype, tensor.shape, tensor.device) != (other.dtype, other.shape, other.device):
        return False
    return bool(((tensor == other) | (tensor != tensor) & (other != other)).all())


def leaf_of(tensor: Tensor, kind: type[Tensor], requires_grad: bool, tags: Tags) -> Tensor:
    """Return `tensor` as a leaf of a new graph, of class `kind` and with the attributes in `tags`."""
    leaf = tensor.detach()
    if type(leaf) is not kind and kind is not torch.nn.Parameter:
        leaf = leaf.as_subclass(kind)
    leaf.requires_grad_(requires_grad)
    return tagged(leaf, tags) if tags else leaf


def tags_of(tensor: Tensor) -> Tags:
    """Return the Python attributes of a tensor by name, such as the sizes of a causal mask.

    Attributes that are tensors are left out: they could lead back to the frame.
    """
    every = tensor.__dict__
    return [(name, value) for name, value in every.items() if not isinstance(value, Tensor)] if every else []


def tagged(tensor: Tensor, tags: Tags) -> Tensor:
    """Set the attributes in `tags` on a tensor, where it has none of that name; return the tensor."""
    for name, value in tags:
        tensor.__dict__.setdefault(name, value)
    return tensor


def _laid_out(tensor: Tensor, shape: tuple[Any, ...], stride: tuple[int, ...]) -> Tensor:
    """Copy a tensor into the layout that forward saw. Hooks may bring back another, and rounding depends on it."""
    single = tensor
    for dimension, (length, step) in enumerate(zip(shape, stride, strict=True)):
        if step == 0 and length > 1:  # expanded
            single = single.narrow(dimension, 0, 1)
    laid = torch.empty_strided(single.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return laid.copy_(single).expand(shape)


def check_unchanged(tensor: Tensor, expected: int, what: str) -> None:
    """Refuse a tensor that was changed in place since forward read it, in the words that autograd uses.

    Raises:
        Changed: its version has moved.
    """
    found = private.version(tensor)
    if found != expected:
        raise Changed(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{what} of a recomputed segment, of shape {private.sizes(tensor)}, is at version {found}; expected "
            f"version {expected}. Keep the call, or change the tensor only after backward."
        )
