"""Steps of compiled models, measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import autockpt


def static_bytes(model: nn.Module, batch: tuple[Tensor, ...]) -> int:
    """Return the bytes of parameters, buffers and a batch."""
    return sum(each.untyped_storage().nbytes() for each in (*model.parameters(), *model.buffers(), *batch))


def trained(compiled: Any, batch: tuple[Tensor, ...], steps: int = 3) -> tuple[list[int], list[Tensor]]:
    """Run steps; return the bytes that each took above its start, and what the last left."""
    sizes, left = list[int](), list[Tensor]()

    def step() -> None:
        torch.manual_seed(11)
        loss = compiled(*batch)
        loss.backward()
        left[:] = [loss.detach()]

    for _ in range(steps):
        compiled.zero_grad(set_to_none=True)
        left.clear()
        sizes.append(autockpt.measure(step).step_bytes)
    left += [each.grad.clone() for each in compiled.parameters() if each.grad is not None]
    compiled.zero_grad(set_to_none=True)
    return sizes, [*left, torch.get_rng_state()]
