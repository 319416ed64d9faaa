"""What autograd holds in place of a tensor that a segment saves.

    Slot        the tensor is dropped; the frame's replay makes it again
    OwnedSlot   the tensor is a parameter or a buffer, or a view of one; the parameter or buffer is held

This code runs once or twice for every saved tensor. So a few lines are repeated, to save a function call.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from ..._calls.found.held import check_unchanged
from ..._torch import private

_keeps_graph = private.keeps_graph

Look: TypeAlias = tuple[tuple[Any, ...], tuple[int, ...], torch.dtype, torch.device]
"""Shape, strides, dtype and device."""

_NO_NODE = type(None)

_WHOLE = (torch.nn.Parameter, Tensor)


class Fills(Protocol):
    """Brings dropped tensors back: a frame.

    Attributes:
        calls: the calls that a replay would run; empty if nothing can ask for a replay any more.
        looks: the looks of its slots. Slots share equal ones: thousands more objects would trigger Python's collector.
    """

    calls: list[Any]
    looks: dict[Look, Look]

    def fill(self, slot: Slot) -> None:
        """Fill a slot."""

    def try_to_fill(self, slot: Slot) -> None:
        """Fill a slot, unless another frame has it by then."""


class Expects(Protocol):
    """Knows what forward saved in a slot, and takes what a replay makes for it.

    Attributes:
        stands: key of the call that saved it, if backward is to read forward's tensor and not the replay's; else empty.
    """

    stands: str

    def take(self, made: Tensor) -> None:
        """Take what the replay made."""

    def tensor(self) -> Tensor:
        """Return what forward saved."""


class Slot:
    """Stands for a saved tensor that is dropped in forward and comes back with the frame's replay.

    Attributes:
        frame: brings it back.
        value: the tensor that the replay made. The slot holds it until it is freed itself, or until a backward that
            keeps its graph reads the value. A later backward replays again.
        given: number of the backward that keeps its graph and has read the value; None if there is none.
        expected: what forward saved here, if it is compared with what the replay makes.
        look: how the tensor looks.
        node: the class of its node.

    `Pack.hook` makes slots, and sets all of these.
    """

    __slots__ = ("__weakref__", "_version", "expected", "frame", "given", "look", "node", "value")
    frame: Fills
    value: Tensor | None
    given: int | None
    expected: Expects | None
    look: Look
    node: type
    _version: int  # of the value

    def fill(self, tensor: Tensor, value: Tensor) -> str | None:
        """Take the replay's `tensor`; `value` is the same, detached.

        Node, shape, strides, dtype and device are compared with those of forward. Values are not.

        Returns:
            How it differs from what forward saved here; None if it does not.
        """
        node = type(tensor.grad_fn)
        # A tensor of the boundary has a node in forward and none in the replay. Each compilation has a node class of
        # its own, all with the same name. The replay may run another compilation than forward did.
        if node is not self.node and node.__name__ != self.node.__name__ and _NO_NODE not in (node, self.node):
            return f"a result of {node.__name__} instead of {self.node.__name__}"
        try:
            look: Look = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        except RuntimeError:
            look = sparse_look(tensor)
        if look != self.look:
            return _difference(look, self.look)
        self._version = value._version
        self.value = value
        if self.expected is not None:
            self.expected.take(value)
        return None

    def fill_from(self, tensor: Tensor, offset: int) -> str | None:
        """Take a view of the replay's `tensor` that begins `offset` elements after its first; returns as for `fill`."""
        shape, stride, dtype, device = self.look
        value = tensor.detach()
        if offset or value.shape != shape or value.stride() != stride:
            value = value.as_strided(shape, stride, value.storage_offset() + offset)
        if value.dtype is not dtype or value.device != device:
            return _difference((shape, stride, value.dtype, value.device), self.look)
        self._version = value._version
        self.value = value
        if self.expected is not None:
            self.expected.take(value)
        return None

    @private.never_compiled
    def tensor(self) -> Tensor:
        """Return the saved tensor, replaying the frame if need be."""
        if self.expected is not None and self.expected.stands:
            return self.expected.tensor()
        value = self.value
        if value is None:
            self.frame.fill(self)
            return self.tensor()
        if value._version != self._version:
            check_unchanged(value, self._version, "a tensor")
        # If this backward keeps the graph, the value is dropped now: a later backward replays again (rule 2). If the
        # frame has let its calls go, as it mostly has, it cannot replay again. Then the value stays.
        if self.frame.calls and _keeps_graph():
            backward = private.keeping_backward()
            if backward >= 0:
                self.value, self.given = None, backward
        return value


class OwnedSlot:
    """Stands for a saved tensor in the storage of a parameter or buffer: holds that, and how forward viewed it."""

    __slots__ = ("_owner", "_version", "_view")

    def __init__(self, owner: Tensor, tensor: Tensor) -> None:
        self._owner = owner
        self._version = owner._version
        self._view: Any = None
        if tensor is owner:
            return
        # As `reads_alike`, and as `local` for a tensor that is not distributed.
        alike = (
            tensor.dtype is owner.dtype and tensor.is_conj() is owner.is_conj() and tensor.is_neg() is owner.is_neg()
        )
        if alike and not tensor.is_nested and (type(owner) in _WHOLE or private.local(owner) is owner):
            self._view = tensor.shape, tensor.stride(), tensor.storage_offset()  # a tensor with a storage has strides
        else:
            self._view = tensor.detach()

    @private.never_compiled
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


def reads_alike(tensor: Tensor, whole: Tensor) -> bool:
    """Whether a tensor reads bytes as the same numbers as `whole` does, so that a view of `whole` can replace it."""
    return tensor.dtype is whole.dtype and tensor.is_conj() is whole.is_conj() and tensor.is_neg() is whole.is_neg()


def sparse_look(tensor: Tensor) -> Look:
    """Describe a tensor of a compressed sparse layout, or a strided nested one, which have no strides."""
    return private.sizes(tensor), (), tensor.dtype, tensor.device


def _difference(found: Look, expected: Look) -> str:
    """Say how two different looks differ."""
    words = ("of shape", "of strides", "of", "on")
    pairs = zip(words, (tuple(found[0]), *found[1:]), (tuple(expected[0]), *expected[1:]), strict=True)
    return next(f"a tensor {word} {one} instead of {other}" for word, one, other in pairs if one != other)
