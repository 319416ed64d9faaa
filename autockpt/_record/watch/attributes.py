"""What stands at attributes of a call's modules as it begins: a replay finds it there, and forward may overwrite it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..._calls.objects.attributes import tensors_at_attributes
from .marks import Found, SeenCall


def mark_attributes(
    mark: Callable[..., object], key: Callable[[torch.Tensor], int], index: int, call: SeenCall, module: torch.nn.Module
) -> None:
    """Mark the tensors at attributes of the modules of call number `index`, if there are any with a `key`.

    `mark` puts a marker on the tape: its kind, its index, and the keys of its storages.
    """
    every = ((name, each, key(each)) for name, each in tensors_at_attributes(module, call.name))
    found = [(Found(name, each.grad_fn is not None), number) for name, each, number in every if number]
    if found:
        call.found = tuple(each for each, _ in found)
        mark("found", index, keys=tuple(number for _, number in found))
