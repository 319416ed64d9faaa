"""Stand-ins for layers with weights of codes and scales, and for Functions that keep tensors on `ctx`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from tests.nets.kind import WIDTH, Block

__all__ = ["Adapted", "Attributes", "Quantizes", "State", "quantized"]


class OnContext(torch.autograd.Function):
    """Keeps what it reads in backward as attributes, as bitsandbytes does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        half = weight.half().float()
        ctx.tensors = x, half
        return x @ half.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.tensors
        return gradients[0] @ weight, gradients[0].T @ x


class State:
    """A weight's codes and scales, which forward and backward share."""

    def __init__(self, weight: Tensor) -> None:
        self.codes, self.scales = quantized(weight)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.detach().abs().amax(1, keepdim=True) / 127
    return (weight.detach() / scales).round().to(torch.int8), scales


class Shared(torch.autograd.Function):
    """Reads in backward what the last forward has left in the state of the layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, state: State) -> Tensor:
        state.codes, state.scales = quantized(weight)
        ctx.state, ctx.x = state, x
        return x @ (state.codes * state.scales).T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0] @ (ctx.state.codes * ctx.state.scales), gradients[0].T @ ctx.x, None


class Attributes(Block):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(gelu(OnContext.apply(x, self.widen.weight)))  # type: ignore[no-untyped-call]
        return out


class Quantizes(Block):
    """Codes a weight in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(self.widen.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = Shared.apply(x, self.widen.weight, self.state)  # type: ignore[no-untyped-call]
        out: Tensor = x + self.narrow(gelu(wide))
        return out


class Adapted(nn.Module):
    """A frozen weight of codes with scales in an object of its own, beside an adapter."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(WIDTH, WIDTH) / WIDTH
        self.state = State(weight)
        self.codes = nn.Parameter(self.state.codes, requires_grad=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        base = linear(x, self.codes * self.state.scales)
        out: Tensor = x + base + self.down(gelu(self.up(x)))
        return out
