"""Tensors that wait from forward to backward, without the graph through which they could lead back to their frame.

    Detached    held itself: the boundary, what a kept unit returned, what it saved
    Packed      of the boundary, and other hooks around the model hold it (`save_on_cpu`)

Each refuses a tensor that was changed in place meanwhile, as autograd does.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import _torch_private
from .._calls.values import tensors

Tags: TypeAlias = list[tuple[str, Any]]
"""What Python has put on a tensor, by name."""


class Changed(RuntimeError):
    """A tensor was changed in place between its use in forward and its use in backward."""


READ = "a tensor that it reads"
"""What one of the boundary is, for whoever changes it in place."""

BOUNDARY = -1
"""`Ref.call` of a tensor that the boundary holds."""


class Ref(NamedTuple):
    """Where a replay finds a tensor: leaf number `leaf` of what the frame's call number `call` returned."""

    call: int
    leaf: int


class Detached:
    """A tensor without its graph, through which it could lead back to the frame: a cycle that no collector sees.

    One without a graph is held itself, with its class, its attributes and all.
    """

    __slots__ = ("_kind", "_requires_grad", "_tags", "_tensor", "_version", "_what")

    def __init__(self, tensor: Tensor, what: str) -> None:
        """Take a tensor; `what` it is for whoever changes it in place."""
        self._what = what
        try:  # as `version`: this runs for every tensor that a call is given
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

    @_torch_private.never_compiled
    def tensor(self) -> Tensor:
        """Return the tensor for autograd, which saved it."""
        tensor = self._tensor
        # An inference tensor counts no versions, and `check_unchanged` knows that.
        if self._version < 0 or tensor._version != self._version:
            check_unchanged(tensor, self._version, self._what)
        return tensor

    def let_go(self) -> None:
        """Hold nothing that a replay was given and that can be had again."""

    def leaf(self) -> Tensor:
        """Return the tensor as a leaf of a new graph."""
        tensor = self.tensor()
        if self._tags is not None:
            return leaf_of(tensor, self._kind, self._requires_grad, self._tags)
        if tensor.requires_grad is not self._requires_grad:  # since
            return leaf_of(tensor, type(tensor), self._requires_grad, tags_of(tensor))
        return tensor


class Packed(Detached):
    """A tensor of the boundary that waits where the hooks around the model put it."""

    __slots__ = ("_copied", "_geometry", "_packed", "_unpack")

    def __init__(self, tensor: Tensor, hooks: _torch_private.Hooks) -> None:
        super().__init__(tensor, READ)
        self._kind, self._tags = type(tensor), tags_of(tensor)
        self._geometry = _torch_private.geometry(tensor)
        pack, self._unpack = hooks
        with torch.no_grad():
            self._packed = pack(tensor.detach())
        storage = _torch_private.storage_key(tensor)
        self._copied = not any(_torch_private.storage_key(part) == storage for part in tensors(self._packed))
        if self._copied:
            del self._tensor  # so it may change, and die

    def leaf(self) -> Tensor:
        """Return the tensor as a leaf of a new graph."""
        if not self._copied:
            self.tensor()
        tensor = self._unpack(self._packed)
        if _torch_private.geometry(tensor) != self._geometry:
            tensor = _laid_out(tensor.detach(), *self._geometry)
        return leaf_of(tensor, self._kind, self._requires_grad, self._tags or [])


def leaf_of(tensor: Tensor, kind: type[Tensor], requires_grad: bool, tags: Tags) -> Tensor:
    """Return `tensor` as a leaf of a new graph, of class `kind` and with what was on it."""
    leaf = tensor.detach()
    if type(leaf) is not kind and kind is not torch.nn.Parameter:
        leaf = leaf.as_subclass(kind)
    leaf.requires_grad_(requires_grad)
    return tagged(leaf, tags) if tags else leaf


def tags_of(tensor: Tensor) -> Tags:
    """Return what Python has put on a tensor, such as the sizes of a causal mask, by name.

    But tensors: they could lead back to the frame.
    """
    every = tensor.__dict__
    return [(name, value) for name, value in every.items() if not isinstance(value, Tensor)] if every else []


def tagged(tensor: Tensor, tags: Tags) -> Tensor:
    """Put on a tensor what was on another; return it."""
    for name, value in tags:
        tensor.__dict__.setdefault(name, value)
    return tensor


def _laid_out(tensor: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    """Copy a tensor into the layout that forward saw: hooks may bring back another, and kernels round by layout."""
    single = tensor
    for dimension, (length, step) in enumerate(zip(shape, stride, strict=True)):
        if step == 0 and length > 1:  # expanded
            single = single.narrow(dimension, 0, 1)
    laid = torch.empty_strided(single.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return laid.copy_(single).expand(shape)


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
