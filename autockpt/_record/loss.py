"""The loss of a step if the user gives none: a loss that the model returns, or else a stand-in that takes its memory.

    after forward   the outputs, and one saved copy of them (the logarithms of softmax)
    its backward    allocates the gradient of that copy, then the gradient of the outputs; then the copy is freed

That is what a cross-entropy takes. Copies are in single precision, in which autocast computes losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.autograd.graph import Node

from .._calls.values import tensors


def assumed_loss(outputs: Any) -> torch.Tensor:
    """Return the loss that the outputs hold, or a stand-in that takes as much memory as a loss of them would.

    Args:
        outputs: the outputs of the model.

    Returns:
        The output named ``loss``, if there is one. Else the sum of all outputs with one element. Outputs from which
        none of these was computed add a scalar whose backward takes the memory of a cross-entropy: a model that returns
        logits with an auxiliary loss, or with their scale, still has a loss of the logits. The gradients of that scalar
        have the right shapes, and no meaning.
    """
    named = _named(outputs)
    if named is not None and named.requires_grad:
        return named if named.numel() == 1 else named.sum()
    differentiable = [tensor for tensor in tensors(outputs) if tensor.requires_grad]
    losses = [tensor for tensor in differentiable if tensor.numel() == 1]
    made_of = _graph_of(losses)
    others = [tensor for tensor in differentiable if tensor.grad_fn not in made_of]
    if others:
        losses.append(_Reserve.apply(*others))  # type: ignore[no-untyped-call]
    if not losses:
        return torch.zeros(())
    return losses[0] if len(losses) == 1 else torch.stack([loss.reshape(()) for loss in losses]).sum()


def sum_of_outputs(outputs: Any) -> torch.Tensor:
    """Return the loss that the outputs hold, or the sum of all that require gradients. Its gradients are real ones."""
    named = _named(outputs)
    if named is not None:
        return named
    sums = [tensor.sum() for tensor in tensors(outputs) if tensor.requires_grad]
    return sum(sums[1:], sums[0]) if sums else torch.zeros(())


def _named(outputs: Any) -> torch.Tensor | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else None


def _graph_of(losses: Iterable[torch.Tensor]) -> set[Node | None]:
    """The autograd nodes of some tensors' graphs."""
    todo = [loss.grad_fn for loss in losses]
    found = set(todo)
    while todo:
        node = todo.pop()
        following = {after for after, _ in node.next_functions} - found if node is not None else set()
        found |= following
        todo.extend(following)
    return found


class _Reserve(torch.autograd.Function):
    """A function that saves and allocates as much memory as a loss would."""

    @staticmethod
    def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*(_copy(output) for output in outputs))
        ctx.dtypes = [output.dtype for output in outputs]
        return outputs[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradients = []
        for copy, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            of_copy = torch.zeros_like(copy)
            gradients.append(torch.zeros_like(copy).to(dtype))
            del of_copy
        return tuple(gradients)


def _copy(output: torch.Tensor) -> torch.Tensor:
    precise = output.dtype.itemsize >= torch.float32.itemsize
    return torch.empty_like(output, dtype=output.dtype if precise else torch.float32)
