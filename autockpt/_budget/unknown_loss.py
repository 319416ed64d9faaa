"""The loss of a step that nobody has told: one that the model returns, or else an amount of memory.

    after forward   the outputs, and one copy that backward needs (the logarithms of softmax)
    its backward    a gradient of that copy, then the gradient of the outputs, both whole; then the copy goes

That is what a cross-entropy takes, in single precision, since autocast computes losses in it.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from .._frames.tree import tensors

__all__ = ["RESERVED_COPIES", "assumed_loss"]

RESERVED_COPIES = 3
"""How many copies of the outputs, in single precision at least, are reserved for a loss that is not known."""


def assumed_loss(outputs: Any) -> torch.Tensor:
    """Return the loss that the outputs hold, or a stand-in that takes as much memory as a loss of them would.

    Args:
        outputs: of the model.

    Returns:
        The sum of the outputs that have one element and require a gradient; where there is none, a scalar whose
        backward takes the memory of a cross-entropy of all outputs that require gradients. Its gradients have the right
        shapes and mean nothing.
    """
    differentiable = [tensor for tensor in tensors(outputs) if tensor.requires_grad]
    losses = [tensor for tensor in differentiable if tensor.numel() == 1]
    if losses:
        return torch.stack([loss.reshape(()) for loss in losses]).sum() if len(losses) > 1 else losses[0]
    if not differentiable:
        return torch.zeros(())
    return cast("torch.Tensor", _Reserve.apply(*differentiable))  # type: ignore[no-untyped-call]


class _Reserve(torch.autograd.Function):
    """Holds and allocates what a loss would."""

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
