"""Tensors that wait off the device from forward to backward, because a plan moves them there.

    forward    saved, or of a boundary ── put ──▶ stash      the tensor is freed as if nothing had saved it
    backward   a new storage ◀── get ── stash                once for all that share it, when the first is read

What comes back has the same bytes, so nothing is compared. A storage is moved as a whole. A call or a frame moves it
once for all tensors that share a version counter: a tensor and its views. Other tensors may share only the storage, as
the chunks in a recurrent cell do. One may be written after another was saved, so each moves the storage for itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...._calls.found.held import READ, Changed, Detached, check_unchanged, leaf_of, tags_of
from ...._calls.layout import row_of, span_bytes, told_by_bytes
from ...._stash.base import Stash
from ...._stash.overlap import OverlappedStash, Sent
from ...._stash.plan_stash import send
from ...._torch import private
from ..slots import OwnedSlot

SAVED = "a tensor that a moved call saved"

CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation while it was moved "
    "off the device. Keep the call, or change the tensor only after backward."
)


class MovedStorage:
    """A storage that waits off the device. All its tensors share what comes back, until `let_go`."""

    __slots__ = ("__weakref__", "_back", "_waits")

    def __init__(self, stash: Stash | OverlappedStash, tensor: Tensor, underway: list[Sent] | None) -> None:
        self._waits = send(stash, row_of(tensor), tensor, underway)
        self._back: Tensor | None = None

    def bring_back(self) -> Tensor:
        """Return its bytes on the device: one copy for all calls, or for each call while backward keeps its graph."""
        if self._back is not None:
            return self._back
        if isinstance(self._waits, Sent) and self._waits.changed:
            raise Changed(CHANGED)
        back = self._waits.restore()
        if not private.keeps_graph():
            self._back = back
        return back

    def let_go(self) -> None:
        """Drop what came back."""
        self._back = None


class MovedTensor:
    """Stands for a tensor in a storage that waits. Autograd holds it for a saved tensor, until the node is done."""

    __slots__ = ("_alive", "_conjugate", "_dtype", "_offset", "_shape", "_storage", "_stride", "_version", "_what")

    def __init__(self, storage: MovedStorage, tensor: Tensor, what: str) -> None:
        self._storage, self._what, self._conjugate = storage, what, tensor.is_conj()
        self._dtype, self._offset = tensor.dtype, tensor.storage_offset()
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._alive, self._version = weakref.ref(tensor), private.version(tensor)

    @private.never_compiled
    def tensor(self) -> Tensor:
        """Return the tensor, in a storage of its own.

        Raises:
            Changed: it was changed in place since. Only a tensor that is still alive tells.
        """
        alive = self._alive()
        if alive is not None:
            check_unchanged(alive, self._version, self._what)
        with torch.no_grad(), private.no_torch_functions():
            back = self._storage.bring_back()
            empty = torch.empty(0, dtype=self._dtype, device=back.device)
            found = empty.set_(back.untyped_storage(), self._offset, self._shape, self._stride)
            return found.conj() if self._conjugate else found

    def let_go(self) -> None:
        """Drop what came back."""
        self._storage.let_go()


class MovedParts(NamedTuple):
    """Stands for a wrapper of which tensors inside wait.

    Attributes:
        parts: what stands for these.
        make: makes the wrapper of them.
    """

    parts: tuple[MovedTensor | OwnedSlot | Detached, ...]
    make: Callable[[Sequence[Tensor]], Tensor]

    @private.never_compiled
    def tensor(self) -> Tensor:
        """Return the wrapper; errors as for `MovedTensor.tensor`."""
        with torch.no_grad(), private.no_torch_functions():
            return self.make([each.tensor() for each in self.parts])


class Moves:
    """Moves tensors of one call, or of one frame.

    Args:
        stash: where they wait.
        underway: collects the copies that overlap with compute, until the call ends by which they must be done. None if
            the device waits for each copy at once.
    """

    __slots__ = ("_known", "_stash", "_underway")

    def __init__(self, stash: Stash | OverlappedStash, underway: list[Sent] | None = None) -> None:
        self._stash, self._underway = stash, underway
        self._known: dict[int, tuple[weakref.ref[Tensor], int, weakref.ref[MovedStorage]]] = {}

    def storage_of(self, tensor: Tensor) -> MovedStorage | None:
        """Move the storage of a tensor off the device, once for all tensors that are views of the same one.

        Return None for what has no storage, an empty one, or bytes that do not describe it completely.

        Raises:
            NoRoom: the stash takes no more.
        """
        with private.no_torch_functions():
            # In a transform of torch.func it has no storage.
            if not told_by_bytes(tensor) or not private.storage_key(tensor) or not tensor.untyped_storage().nbytes():
                return None
            whole = tensor if tensor._base is None else tensor._base
            version = private.version(tensor)
            known = self._known.get(id(whole))
            alive = known is not None and known[0]() is whole and known[1] == version
            moved = known[2]() if known is not None and alive else None
            if moved is None:
                # Others may write to the rest of a storage before an overlapped copy is done, and no version tells. So
                # the device waits for the copy of a storage of which this tensor is a part.
                largest = whole if told_by_bytes(whole) else tensor
                is_part = span_bytes(largest) < tensor.untyped_storage().nbytes()
                moved = MovedStorage(self._stash, tensor.detach(), None if is_part else self._underway)
                self._known[id(whole)] = weakref.ref(whole), version, weakref.ref(moved)
            return moved


class MovingPack:
    """The pack hook of a call whose saved tensors wait. It must hold nothing after the call, like `Pack`.

    Args:
        moves: moves them.
        owners: parameters and buffers, by the keys of their storages.
        given: the call's arguments. Those without a graph stay on the device.
    """

    __slots__ = ("_moves", "_owners", "_stays")

    def __init__(self, moves: Moves, owners: dict[int, Tensor], given: Iterable[Tensor]) -> None:
        self._moves: Moves | None = moves
        self._owners = owners
        parts = private.parts(given)  # what is inside a wrapper has no graph
        self._stays = {private.storage_key(tensor) for tensor in parts if tensor.grad_fn is None}

    @private.never_compiled
    def hook(self, tensor: Tensor) -> MovedTensor | MovedParts | OwnedSlot | Detached:
        """Return what autograd is to hold for `tensor`."""
        apart = private.apart(tensor)
        if apart is None or (tensor.requires_grad and tensor.grad_fn is None):
            return self._held(tensor)
        parts = tuple(map(self._held, apart.inside))
        moved = any(isinstance(each, MovedTensor) for each in parts)
        return MovedParts(parts, apart.make) if moved else Detached(tensor, SAVED)

    def _held(self, tensor: Tensor) -> MovedTensor | OwnedSlot | Detached:
        """Return what is held for a tensor that is no wrapper."""
        storage = private.storage_key(tensor)
        owner = self._owners.get(storage)
        if owner is not None:
            return OwnedSlot(owner, tensor)
        is_leaf = tensor.requires_grad and tensor.grad_fn is None
        moved = None if is_leaf or storage in self._stays or self._moves is None else self._moves.storage_of(tensor)
        if moved is None:
            return Detached(tensor, SAVED)
        return MovedTensor(moved, tensor, SAVED)

    def close(self) -> None:
        """Drop the references to parameters and to moved tensors."""
        self._moves, self._owners, self._stays = None, {}, set()


class MovedBoundary(Detached):
    """A tensor of the boundary that waits off the device until the replay."""

    __slots__ = ("_view",)

    def __init__(self, tensor: Tensor, storage: MovedStorage) -> None:
        super().__init__(tensor, READ)
        self._kind, self._tags = type(tensor), tags_of(tensor)
        self._view = MovedTensor(storage, tensor, READ)
        del self._tensor  # so it is freed, unless something else holds it

    def tensor(self) -> Tensor:
        """Return the tensor; each time from its storage."""
        return self._view.tensor()

    def leaf(self) -> Tensor:
        """Return the tensor as a leaf of a new graph."""
        return leaf_of(self._view.tensor(), self._kind, self._requires_grad, self._tags or [])

    def let_go(self) -> None:
        """Drop what came back: the replay has it now."""
        self._view.let_go()
