"""Stand-ins for operators that libraries register, and for what their schemas say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library

from tests.nets.kernel_writes import poke

__all__ = ["declared", "normed"]


@library.custom_op("autockpt_tests::says_that_it_writes", mutates_args=("x",))
def says_that_it_writes(x: Tensor) -> Tensor:
    return x.tanh()


@library.custom_op("autockpt_tests::writes_and_does_not_say", mutates_args=())
def writes_and_does_not_say(x: Tensor) -> Tensor:
    return poke(x, x.tanh()).sign()


@library.custom_op("autockpt_tests::normed", mutates_args=())
def normed(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.square().mean(-1, keepdim=True).rsqrt()
    return x * scale, scale


def _keep(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output)


def _of_normed(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
    made, scale = ctx.saved_tensors
    found: Tensor = scale * (gradient - made * (gradient * made).mean(-1, keepdim=True))
    return found


normed.register_autograd(_of_normed, setup_context=_keep)


class Declared(torch.autograd.Function):
    """Runs an operator whose schema says other things of its argument than are true."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, true: bool) -> Tensor:
        made: Tensor = writes_and_does_not_say(x) * x if true else says_that_it_writes(x)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        return gradients[0] * (1 - made.square()), None


def declared(true: bool) -> Callable[[Tensor], Tensor]:
    return lambda x: Declared.apply(x, true)  # type: ignore[no-untyped-call]
