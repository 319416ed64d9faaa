"""What stands before a step: a model's parameters and buffers, which no plan can free."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from .. import _torch_private as private
from .._ranks.units import parameters_at_rest


class StaticStorages:
    """The storages of a model's parameters and buffers, each as long as it is alive.

    A forward may give a buffer another tensor. What the step allocates then may get the address of the one before.

    Args:
        model: the model.
        key: returns the number by which a tensor's storage is known.
    """

    def __init__(self, model: torch.nn.Module, key: Callable[[torch.Tensor], int]) -> None:
        every = private.parts((*parameters_at_rest(model), *model.buffers()))
        keyed = ((key(tensor), tensor) for tensor in every)
        self._alive = {number: weakref.ref(private.local(each).untyped_storage()) for number, each in keyed if number}

    def has(self, key: int) -> bool:
        """Whether a storage is one of them."""
        storage = self._alive.get(key)
        return storage is not None and storage() is not None
