"""What is there before a step: live objects, found safely while other threads run, and the bytes of tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch.optim import Optimizer

from .._calls.objects.contents import Contents
from .._data.step.tables import Static
from .._ranks.fsdp import gathered_now, parameters_at_rest
from .._stash.space.arenas import Arenas
from .._stash.space.pieces import Copier
from .._torch import private
from .._torch.devices import Device, rounded
from .aside.threads import nothing_is_freed
from .optimizers.shadow import state_tensors

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
    """Return the live tensors on a type of device, except the model's, its optimizers', our stashes' and `known` ones.

    One tensor for each storage, by storage key; only tensors that Python can see.

    None while threads run that may hold tensors; see `nothing_is_freed`.
    """
    with nothing_is_freed() as safe:
        if not safe:
            return None
        things = alive(torch.Tensor, Optimizer, Arenas, Copier)
    own_parameters = parameters_at_rest(model)
    trained = {id(parameter) for parameter in own_parameters}
    found = each_storage((each for each in things if isinstance(each, torch.Tensor)), device_type)
    known = private.parts((*known, *own_parameters, *gathered_now(model), *model.buffers()))
    for optimizer in things:
        if isinstance(optimizer, Optimizer):
            its = (id(each) for group in optimizer.param_groups for each in group["params"])
            known += state_tensors(optimizer) if not trained.isdisjoint(its) else []
    known += [row for each in things if isinstance(each, (Arenas, Copier)) for row in each.memory]  # steps hold a stash
    own = {private.storage_key(each) for each in known}
    return {key: each for key, each in found.items() if key not in own}


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a leaf, else None. A view whose base was changed may raise when it is asked: None too."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:
        return None


def static_bytes(
    model: torch.nn.Module,
    device: Device | None,
    inputs: Sequence[torch.Tensor],
    contents: Contents | None = None,
    gradients: Iterable[torch.Tensor | None] = (),
) -> Static:
    """Count the bytes that are allocated before a step, each storage once, rounded as by the allocator.

    Args:
        model: the model.
        device: the device that it trains on: only storages on it count. None if the device is only planned for: then
            all storages count, unrounded.
        inputs: the tensors of its batch.
        contents: tensors in attributes and in the loss's closure, which count too; None if they are counted elsewhere.
        gradients: the existing gradients.
    """
    counted = partial(storage_bytes, device)
    parameters = parameters_at_rest(model)
    own = {*map(private.storage_key, private.parts((*inputs, *parameters, *model.buffers())))}
    held = private.parts(each for _, each in contents.tensors) if contents is not None else []
    others = [each for each in held if private.storage_key(each) not in own]
    return Static(
        parameter_bytes=counted(parameters),
        buffer_bytes=counted(model.buffers()),
        input_bytes=counted(inputs),
        gradient_bytes=counted(each for each in gradients if each is not None),
        other_bytes=counted(others),
    )


def storage_bytes(device: Device | None, tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that the device's allocator gave to those of the tensors that lie on it, each storage once.

    For None, tensors on any device count, unrounded.
    """
    dense = [tensor for tensor in private.parts(tensors) if tensor.layout == torch.strided]
    own = dense if device is None else [tensor for tensor in dense if tensor.device == device.at]
    sizes = {private.storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in own}
    return sum(sizes.values()) if device is None else sum(rounded(device, size) for size in sizes.values())
