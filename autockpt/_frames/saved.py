"""What stands for a tensor between forward and backward.

    Slot        dropped: the frame's replay brings it back
    OwnedSlot   a parameter or a buffer, or a view of one: that itself
    Detached    held without its graph: the boundary, what a kept leaf returned, what it saved
    Packed      of the boundary, and other hooks around the model hold it (`save_on_cpu`)

Each refuses a tensor that was changed in place meanwhile, as autograd does. All of this runs once or twice for every
saved tensor, so what is cheap to write twice is not worth a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import _torch_private
from .._calls.values import tensors

if TYPE_CHECKING:
    from .frame import Frame
    from .proof import Proof


_keeps_graph = _torch_private.keeps_graph


class Changed(RuntimeError):
    """A tensor was changed in place between its use in forward and its use in backward."""


class Slot:
    """Stands for a saved tensor that is dropped in forward and comes back with the frame's replay.

    Attributes:
        frame: the frame that can bring it back.
        value: the tensor, after the replay. It lives here and dies with the slot, or when it is given to a backward
            that keeps its graph: another one replays again.
        given: number of that backward.
        proof: what forward saved here, where that is compared.
    """

    __slots__ = ("__weakref__", "_look", "_node", "_version", "frame", "given", "proof", "value")

    def __init__(self, frame: Frame, tensor: Tensor) -> None:
        self.frame = frame
        self.value: Tensor | None = None
        self.given: int | None = None
        self.proof: Proof | None = None
        self._version = 0
        try:
            look: Look = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        except RuntimeError:
            look = _sparse_look(tensor)
        self._look = frame.looks.setdefault(look, look)
        self._node = type(tensor.grad_fn)

    def fill(self, tensor: Tensor, value: Tensor) -> str | None:
        """Take the replay's `tensor`, which `value` is detached.

        Node, shape, strides, dtype and device are compared with those of forward. Values are not.

        Returns:
            In what it differs from what forward saved here; None if in nothing.
        """
        node = type(tensor.grad_fn)
        # What comes from the boundary has a node in forward and none in the replay. What is compiled has a class of
        # its own for each time that it was, all of one name; a replay may run another than its forward did.
        if node is not self._node and node.__name__ != self._node.__name__ and _NO_NODE not in (node, self._node):
            return f"a result of {node.__name__} instead of {self._node.__name__}"
        try:
            look: Look = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        except RuntimeError:
            look = _sparse_look(tensor)
        if look != self._look:
            return _difference(look, self._look)
        self._take(value)
        return None

    def fill_from(self, tensor: Tensor, offset: int) -> str | None:
        """Take a view of the storage of the replay's `tensor`, so far behind its first element; returns as `fill`."""
        shape, stride, dtype, device = self._look
        value = tensor.detach()
        if offset or value.shape != shape or value.stride() != stride:
            value = value.as_strided(shape, stride, value.storage_offset() + offset)
        if value.dtype is not dtype or value.device != device:
            return _difference((shape, stride, value.dtype, value.device), self._look)
        self._take(value)
        return None

    def _take(self, value: Tensor) -> None:
        self._version = value._version
        self.value = value
        if self.proof is not None:
            self.proof.take(value)

    def tensor(self) -> Tensor:
        """Return the saved tensor, replaying the frame if need be."""
        if self.proof is not None and self.proof.stands:
            return self.proof.tensor()
        value = self.value
        if value is None:
            self.frame.fill(self)
            return self.tensor()
        if value._version != self._version:
            check_unchanged(value, self._version, "a tensor")
        if _keeps_graph() and self.frame.calls:
            backward = _torch_private.keeping_backward()
            if backward >= 0:
                self.value, self.given = None, backward
        return value


class OwnedSlot:
    """A saved tensor whose storage is a parameter's or a buffer's: that object itself, seen as forward saw it."""

    __slots__ = ("_owner", "_version", "_view")

    def __init__(self, owner: Tensor, tensor: Tensor) -> None:
        self._owner = owner
        self._version = owner._version
        self._view: Any = None
        if tensor is owner:
            return
        if _torch_private.local(owner) is owner and reads_alike(tensor, owner):
            self._view = (*_torch_private.geometry(tensor), tensor.storage_offset())
        else:
            self._view = tensor.detach()

    def tensor(self) -> Tensor:
        """Return the saved tensor."""
        owner, view = self._owner, self._view
        if owner._version != self._version:
            check_unchanged(owner, self._version, "a parameter or buffer")
        if view is None:
            return owner
        if isinstance(view, Tensor):
            return view
        return owner.detach().as_strided(*view) if torch.is_grad_enabled() else owner.as_strided(*view)


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
        self._version = _torch_private.version(tensor)
        self._requires_grad = tensor.requires_grad
        self._tags: Tags | None = None
        self._tensor = tensor
        if tensor.grad_fn is not None:
            self._kind = type(tensor)
            self._tags = tags_of(tensor)
            self._tensor = tensor.detach()

    def tensor(self) -> Tensor:
        """Return the tensor for autograd, which saved it."""
        if _torch_private.version(self._tensor) != self._version:
            check_unchanged(self._tensor, self._version, self._what)
        return self._tensor

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
        super().__init__(tensor, "a tensor that it reads")
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
    return tagged(leaf.requires_grad_(requires_grad), tags)


def tags_of(tensor: Tensor) -> Tags:
    """Return what Python has put on a tensor, such as the sizes of a causal mask, by name.

    But tensors: they could lead back to the frame.
    """
    return [(name, value) for name, value in tensor.__dict__.items() if not isinstance(value, Tensor)]


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


def reads_alike(tensor: Tensor, whole: Tensor) -> bool:
    """Whether a tensor makes the same numbers of the same bytes as `whole` does, so that a view of that can be it."""
    return tensor.dtype is whole.dtype and tensor.is_conj() is whole.is_conj() and tensor.is_neg() is whole.is_neg()


Tags: TypeAlias = list[tuple[str, Any]]
Look: TypeAlias = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
"""Shape, strides, dtype and device."""

_NO_NODE = type(None)


def _sparse_look(tensor: Tensor) -> Look:
    """Describe a tensor of a compressed sparse layout, which has no strides."""
    return tensor.shape, (), tensor.dtype, tensor.device


def _difference(found: Look, expected: Look) -> str:
    """Say in what two tensors differ that look different."""
    words = ("of shape", "of strides", "of", "on")
    pairs = zip(words, (tuple(found[0]), *found[1:]), (tuple(expected[0]), *expected[1:]), strict=True)
    return next(f"a tensor {word} {one} instead of {other}" for word, one, other in pairs if one != other)
