"""The ways in which the blocks of this benchmark run: plain, under plans, and by `torch.utils.checkpoint`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Plan, Segment
from benchmarks.host_cost.blocks import Stack

__all__ = ["DEPTH", "NEVER", "SAMPLED", "settings"]

DEPTH = 16
SAMPLED, NEVER = "autockpt", 'autockpt, check="never"'

torch_checkpoint = functools.partial(checkpoint, use_reentrant=False)
Setting = Callable[[Stack], None]


def settings() -> dict[str, Setting]:
    """Return by name what is to be timed; each makes a stack run its way."""

    def plain(stack: Stack) -> None:
        autockpt.remove(stack)
        stack.call = None

    def planned(stack: Stack, blocks: range, check: Literal["sampled", "never"] = "sampled") -> None:
        plain(stack)
        autockpt.apply(stack, plan=Plan(segments=tuple(_segment(stack, number) for number in blocks)), check=check)

    def peer(stack: Stack, preserve: bool) -> None:
        plain(stack)
        stack.call = functools.partial(torch_checkpoint, preserve_rng_state=preserve)

    def twice(stack: Stack) -> None:
        plain(stack)
        stack.call = forward_again

    return {
        "plain": plain,
        "forward run twice": lambda stack: twice(stack),
        SAMPLED: lambda stack: planned(stack, range(DEPTH)),
        NEVER: lambda stack: planned(stack, range(DEPTH), "never"),
        "autockpt, kept calls": lambda stack: planned(stack, range(DEPTH - 1, DEPTH)),
        "torch": lambda stack: peer(stack, True),
        "torch, preserve_rng_state=False": lambda stack: peer(stack, False),
    }


def forward_again(block: nn.Module, hidden: Tensor, mask: Tensor) -> Tensor:
    """Run `block`, and once more when backward comes to it, as a replay does; the second result is let go."""
    out: Tensor = block(hidden, mask)
    given = hidden.detach().requires_grad_()

    def again(gradient: Tensor) -> None:
        with torch.enable_grad():
            block(given, mask)

    out.register_hook(again)
    return out


def _segment(stack: Stack, number: int) -> Segment:
    buffers = tuple(name for name, _ in stack.named_buffers() if name.startswith(f"blocks.{number}."))
    return Segment(calls=(f"blocks.{number}#0",), buffers=buffers)
