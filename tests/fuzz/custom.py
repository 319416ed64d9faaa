"""Leaves around custom autograd Functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz.leaves import WIDTH

__all__ = ["Custom", "MarksDirty", "Masked", "SavesOutput", "apply"]


class SavesOutput(torch.autograd.Function):
    """Saves what it returns, and reads what it saved twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.sigmoid()
        ctx.save_for_backward(out, x)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        out, _ = ctx.saved_tensors
        again, x = ctx.saved_tensors
        gradient: Tensor = grads[0] * out * (1 - again) + 0 * x
        return gradient


class MarksDirty(torch.autograd.Function):
    """Changes its argument and returns it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(0.5)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 0.5


class TwoResults(torch.autograd.Function):
    """Keeps a tensor on its context as well, and has a result without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        mask = x > 0
        ctx.mask = mask
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(mask)
        return x * weight * mask, mask

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grads[0] * weight * ctx.mask, (grads[0] * x * ctx.mask).sum((0, 1))


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)


class Custom(nn.Module):
    """A layer around a custom Function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function(self.linear(x))
        return out


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out, mask = apply(TwoResults, x, self.weight)
        result: Tensor = out + mask.to(x.dtype) * x
        return result
