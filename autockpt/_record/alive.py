"""Finds the live objects of a class, safely while other threads run, and the storages of live tensors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch.optim import Optimizer

from .. import _torch_private as private
from .._optimizer.shadow import state_tensors
from .._ranks.fsdp import gathered_now, parameters_at_rest

T = TypeVar("T")

_REAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Classes of tensors that count. Others (fake tensors, wrappers) may have no memory of their own."""


def alive(*kinds: type[T]) -> list[T]:
    """Return every object of some classes, or of their subclasses, that Python's garbage collector tracks.

    It asks the collector what refers to these classes: their objects do. ``gc.get_objects`` would also return tuples
    that other threads are still building. A tuple with a second reference cannot be resized: ``SystemError`` there.
    """
    every: list[type[T]] = [*kinds]
    for each in every:
        every += [derived for derived in type.__subclasses__(each) if derived not in every]
    return [thing for thing in gc.get_referrers(*every) if issubclass(type(thing), kinds)]


def each_storage(tensors: Iterable[torch.Tensor], device_type: str) -> dict[int, torch.Tensor]:
    """Return one tensor for each storage that tensors and their gradients have on a type of device, by storage key."""
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        gradient = _gradient_of(tensor)
        for each in (tensor,) if gradient is None else (tensor, gradient):
            if type(each) in _REAL and each.device.type == device_type and each.layout == torch.strided:
                found[private.storage_key(each)] = each
    found.pop(0, None)
    return found


def beside(model: torch.nn.Module, known: Iterable[torch.Tensor], device_type: str) -> dict[int, torch.Tensor] | None:
    """Return the live tensors on a type of device, except the model's, its optimizers' and those that are `known`.

    One tensor for each storage, by storage key; only tensors that Python can see.

    None while other threads run. torch releases the GIL in the middle of freeing a tensor. A thread that finds the
    tensor then would free it a second time, and the process would crash.
    """
    if threading.active_count() > 1:
        return None
    own_parameters = parameters_at_rest(model)
    things, trained = alive(torch.Tensor, Optimizer), {id(parameter) for parameter in own_parameters}
    found = each_storage((each for each in things if isinstance(each, torch.Tensor)), device_type)
    known = private.parts((*known, *own_parameters, *gathered_now(model), *model.buffers()))
    for optimizer in things:
        if isinstance(optimizer, Optimizer):
            its = (id(each) for group in optimizer.param_groups for each in group["params"])
            known += state_tensors(optimizer) if not trained.isdisjoint(its) else []
    own = {private.storage_key(each) for each in known}
    return {key: each for key, each in found.items() if key not in own}


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a leaf, else None. A view whose base was changed may raise when it is asked: None too."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None
