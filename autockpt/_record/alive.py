"""What is alive of a class, found while other threads run; and what memory that is."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch.optim import Optimizer

from .. import _torch_private as private
from .._optimizer.shadow import state_tensors
from .._ranks.units import gathered_now, parameters_at_rest

T = TypeVar("T")

_REAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Other classes (fake tensors, wrappers) need not have memory of their own."""


def alive(*kinds: type[T]) -> list[T]:
    """Return every object of some classes, or of classes derived from them, that Python's collector knows.

    Asked for by what refers to the classes, as their objects do. ``gc.get_objects`` would hand out what other threads
    are just making too, and a tuple that somebody else holds cannot be finished (``SystemError``).
    """
    every: list[type[T]] = [*kinds]
    for each in every:
        every += [derived for derived in type.__subclasses__(each) if derived not in every]
    return [thing for thing in gc.get_referrers(*every) if issubclass(type(thing), kinds)]


def each_storage(tensors: Iterable[torch.Tensor], device_type: str) -> dict[int, torch.Tensor]:
    """Return for each storage of some tensors and of their gradients, on a type of device, a tensor that has it."""
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        gradient = _gradient_of(tensor)
        for each in (tensor,) if gradient is None else (tensor, gradient):
            if type(each) in _REAL and each.device.type == device_type and each.layout == torch.strided:
                found[private.storage_key(each)] = each
    found.pop(0, None)
    return found


def beside(model: torch.nn.Module, known: Iterable[torch.Tensor], device_type: str) -> dict[int, torch.Tensor] | None:
    """Return what Python can see of the memory of a type of device, but for what is known and a model's optimizers.

    A tensor for each storage, by what names that.

    None while other threads run. torch lets go of the interpreter in the midst of ending a tensor, and who finds that
    one meanwhile ends it a second time: the process dies.
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
    """Return the gradient of a leaf; None of a view, among others where its base was changed, which cannot be asked."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None
