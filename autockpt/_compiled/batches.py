"""Batches that a compiled model is trained on: what those of one kind have in common, and what stands beside a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .._calls.values import tensors
from .._data.compiled_plan import CompiledPlan
from .._ranks.buckets import unseen_bytes, wrappers
from .._record.optimizers.memory import OptimizerMemory, Optimizers, choose_optimizers, optimizer_memory
from .._torch import private as torch_private
from .._torch.devices import device_of

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments by position and by keyword."""

Seen = Sequence[torch.optim.Optimizer]
"""Optimizers that were seen to step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLook:
    """What a batch shares with those of its kind: its traits, and the shapes of its tensors."""

    traits: tuple[object, ...]
    shapes: tuple[tuple[int, ...], ...]

    def covers(self, other: BatchLook) -> bool:
        """Whether another batch is like this one, and no larger in any dimension."""
        pairs = zip(self.shapes, other.shapes, strict=True) if self.traits == other.traits else ()
        alike = self.traits == other.traits
        return alike and all(mine >= theirs for own, shape in pairs for mine, theirs in zip(own, shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKind:
    """One kind of batch: its plan, the call that is cut by it, and what stood beside the step when it was made."""

    plan: CompiledPlan
    run: Callable[..., Any]
    standing_bytes: int


def given_of(inputs: object) -> Given:
    """Return a batch as the arguments of a call."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def may_train(model: nn.Module, given: Given) -> bool:
    """Whether a call may be one of training."""
    return torch.is_grad_enabled() and (
        any(each.requires_grad for each in model.parameters()) or any(each.requires_grad for each in tensors(given))
    )


def look_of_batch(model: nn.Module, given: Given) -> BatchLook:
    """Return what a batch shares with those of its kind: values that are no tensors, modes, autocast, and sizes."""
    args, kwargs = given
    values = torch.utils._pytree.tree_leaves((args, kwargs))
    looks = tuple(
        (each.dim(), each.dtype, each.requires_grad) if isinstance(each, torch.Tensor) else repr(each)
        for each in values
    )
    trained = tuple(each.requires_grad for each in model.parameters())
    return BatchLook(
        traits=(looks, (*kwargs,), trained, model.training, torch_private.any_autocast_enabled()),
        shapes=tuple(tuple(each.shape) for each in values if isinstance(each, torch.Tensor)),
    )


def optimizer_memory_of(model: nn.Module, named: Optimizers | None, seen: Seen) -> OptimizerMemory:
    """Return what the optimizers of a model hold: those that were seen to step, else the one that was named."""
    asked = [*seen] or named
    if asked is None:
        return OptimizerMemory()
    trained = {id(each) for each in model.parameters() if each.requires_grad}
    device = device_of(next(model.parameters()).device)
    return optimizer_memory(choose_optimizers(asked, model, seen=bool(seen)), trained, device)


def standing_bytes_of(model: nn.Module, given: Given) -> int:
    """Return what stands beside a step on the device of a model: parameters, buffers, gradients, the batch.

    And the buckets in which DistributedDataParallel adds gradients, which Python does not see.
    """
    device = next(model.parameters()).device
    held = [*model.parameters(), *model.buffers(), *tensors(given)]
    held += [each.grad for each in model.parameters() if each.grad is not None]
    storages = {
        torch_private.storage_key(each): each.untyped_storage().nbytes()
        for each in torch_private.parts(held)
        if each.device == device
    }
    return sum(storages.values()) + sum(map(unseen_bytes, wrappers(model)))
