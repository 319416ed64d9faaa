"""Writes to a saved tensor that no version counts: through ``.data``, numpy, or a kernel's pointer.

    y = tanh(x)          autograd saves y, and its bytes wait in the stash
    y.data.add_(0.1)     the plain step's backward reads y as it stands now

Backward gets what the plain step would read. Where the storage is alive as backward asks, its bytes are compared with
those that wait. A storage that goes before is written to by somebody who was given a way to do so: a write through
``.data`` is seen in the function that makes it, and numpy may write at any time. Such a storage stays until nobody else
holds it. Then its bytes are the last ones: what waits takes them over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from .._calls.checksum import checksum_of, same
from .._calls.values import tensors
from .._torch import private
from .base import NoRoom
from .space.pieces import pieces
from .waiting import SavedStorage, Waiting

T = TypeVar("T")

HANDS_OUT = frozenset({"numpy", "__array__", "__dlpack__"})
"""Torch functions that give somebody memory to which torch sees no writes."""


class Original:
    """Where a tensor that waits came from. It keeps no memory alive, unless it is told to `stay`.

    Args:
        tensor: the tensor, as it is saved.
        storage: its storage.
    """

    __slots__ = ("_counter", "_offset", "_stays", "_storage", "_version")

    def __init__(self, tensor: torch.Tensor, storage: weakref.ref[torch.UntypedStorage]) -> None:
        self._storage, self._offset = storage, int(tensor.storage_offset())
        self._counter, self._version = private.version_counter(tensor), private.version(tensor)
        self._stays: torch.UntypedStorage | None = None

    def stay(self, storage: torch.UntypedStorage) -> None:
        """Keep the storage alive as long as the tensor waits."""
        self._stays = storage

    def now(self, like: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor as it stands; None if it is gone, or if a write was counted.

        After such a write the plain step's backward ends in an error, so what waits is as good as what stands.

        Args:
            like: a tensor of the same type, sizes and strides, without storage offset.
        """
        storage = self._storage()
        if storage is None or private.version(self._counter) != self._version:
            return None
        if storage.nbytes() < self._offset * like.itemsize + like.untyped_storage().nbytes():
            return None  # FSDP empties storages, and fills them again
        empty = torch.empty(0, dtype=like.dtype, device=like.device)
        return empty.set_(storage, self._offset, like.shape, like.stride())


def renew(tensor: torch.Tensor, now: torch.Tensor) -> bool:
    """Give a tensor the bytes that another of the same type, sizes and strides has; return whether any differed."""
    pairs = zip(pieces(tensor), pieces(now), strict=True)
    differing = [(mine, other) for mine, other in pairs if not same(checksum_of(mine), checksum_of(other))]
    for mine, other in differing:
        mine.copy_(other)
    return bool(differing)


class LateWrites:
    """Sees in the functions of forward who may write to a saved tensor uncounted, and who does.

    Args:
        waiting: the storages of which something waits elsewhere.
        held: keys of storages that stay anyway.
    """

    def __init__(self, waiting: Waiting, held: Iterable[int]) -> None:
        self._waiting, self._held = waiting, frozenset(held)
        self._open: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # storages of which somebody has ``.data``
        self._staying: list[SavedStorage] = []
        self._out: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # storages that somebody else may write to

    def opens(self, tensor: torch.Tensor) -> None:
        """Note that somebody has read ``tensor.data``."""
        with private.no_torch_functions():
            key = private.storage_key(tensor)
            if key and key not in self._held:
                self._open[key] = weakref.ref(tensor.untyped_storage())

    def around(self, name: str, given: object, run: Callable[[], T]) -> Callable[[], T]:
        """Return what to run instead of a torch function, so that its uncounted writes are seen.

        Args:
            name: short name of the function.
            given: its arguments.
            run: runs it.
        """
        if name in HANDS_OUT:
            return partial(self._hand_out, given, run)
        return partial(self._watch, given, run) if self._open else run

    def are_open(self, tensor: torch.Tensor) -> bool:
        """Whether somebody has a way to write to a tensor uncounted."""
        return bool(self._open or self._out) and (_has(self._open, tensor) or _has(self._out, tensor))

    def are_unseen(self, tensor: torch.Tensor) -> bool:
        """Whether somebody may write to a tensor and no function shows it: its memory is not torch's alone."""
        return _has(self._out, tensor) or not tensor.untyped_storage().resizable()

    def stay(self, tensor: torch.Tensor) -> None:
        """Keep a tensor's storage as long as something of it waits, or until it is settled."""
        known = self._waiting.of(tensor)
        if known is None:
            return
        for save in known.alive():
            if save.original is not None:
                save.original.stay(tensor.untyped_storage())
        owned = tensor.untyped_storage().resizable() or _has(self._out, tensor)  # else somebody has its memory for good
        if owned and known not in self._staying:
            self._staying.append(known)

    def settle(self) -> None:
        """Let go of the storages that nobody else holds any more: nobody can write to them now.

        What is saved of such a storage is settled first. If there is no room for that, the storage stays.
        """
        for known in [*self._staying]:
            storage = known.storage()
            if storage is None or private.held_alone(storage):
                self._staying.remove(known)
                for save in known.alive():
                    with suppress(NoRoom):
                        save.settle()

    def _hand_out(self, given: object, run: Callable[[], T]) -> T:
        found = run()
        with private.no_torch_functions():
            for each in tensors(given):
                if (key := private.storage_key(each)) and key not in self._held:
                    self._out[key] = weakref.ref(each.untyped_storage())
                    self.stay(each)
        return found

    def _watch(self, given: object, run: Callable[[], T]) -> T:
        with private.no_torch_functions():
            watched = [(each, private.version(each)) for each in tensors(given) if _has(self._open, each)]
        try:
            return run()
        finally:
            with private.no_torch_functions():
                for each, before in watched:
                    if private.version(each) != before:
                        self.stay(each)


def _has(storages: dict[int, Any], tensor: torch.Tensor) -> bool:
    """Whether a tensor has one of these storages: a new one may have the key of one that is gone."""
    known = storages.get(private.storage_key(tensor))
    return known is not None and known() is tensor.untyped_storage()
