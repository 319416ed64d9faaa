"""What is allocated before a step: a model's parameters and buffers, which no plan can free."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from ..._ranks.fsdp import parameters_at_rest
from ..._torch import private


class StaticStorages:
    """The storages of a model's parameters and buffers, each until it is freed.

    A forward may replace a buffer by another tensor. Then the step may allocate a storage at the old one's address.

    Args:
        model: the model.
        key: returns the key of a tensor's storage, by which the storage is known; 0 if there is none.
    """

    def __init__(self, model: torch.nn.Module, key: Callable[[torch.Tensor], int]) -> None:
        self._key = key
        every = private.parts((*parameters_at_rest(model), *model.buffers()))
        keyed = ((key(tensor), tensor) for tensor in every)
        self._alive = {number: weakref.ref(private.local(each).untyped_storage()) for number, each in keyed if number}

    def has(self, key: int) -> bool:
        """Whether the storage with this key is one of them, and is alive."""
        storage = self._alive.get(key)
        return storage is not None and storage() is not None

    def is_cast(self, tensor: torch.Tensor, *, fresh: bool) -> bool:
        """Whether a tensor is a cast of a static tensor, as autocast makes and caches casts of parameters.

        Args:
            tensor: the tensor.
            fresh: whether it was made in this step. An older one may be stale: the parameter was updated since. Then a
                replay would cast another value, so it counts as no cast.
        """
        leaf = private.cast_of(tensor)
        if leaf is None or not self.has(self._key(leaf)):
            return False
        return fresh or torch.equal(leaf.detach().to(tensor.dtype), tensor.detach())
