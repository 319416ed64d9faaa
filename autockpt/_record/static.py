"""Counts the bytes that are allocated before a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch

from .. import _torch_private as private
from .._calls.contents import Contents
from .._data.tables import Static
from .._device import Device, rounded
from .._ranks.fsdp import parameters_at_rest


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
