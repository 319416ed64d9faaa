"""An optimizer that no library's recording knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["EightBit"]

ROW = 256


class EightBit(torch.optim.Optimizer):
    """Momentum in eight bits: each row of 256 numbers has a scale of its own."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    moved = self._moved(each, group["momentum"])
                    each.add_(moved, alpha=-group["lr"])

    def _moved(self, parameter: Tensor, momentum: float) -> Tensor:
        state, count = self.state[parameter], parameter.numel()
        rows = -(-count // ROW)
        if not state:
            state["codes"] = torch.zeros(rows, ROW, dtype=torch.int8, device=parameter.device)
            state["scales"] = torch.zeros(rows, 1, device=parameter.device)
        assert parameter.grad is not None
        whole = state["codes"] * state["scales"]
        whole.view(-1)[:count].mul_(momentum).add_(parameter.grad.reshape(-1))
        torch.div(whole.abs().amax(1, keepdim=True), 127, out=state["scales"])
        state["codes"].copy_((whole / state["scales"].clamp_min(1e-20)).round_())
        moved: Tensor = whole.view(-1)[:count].view_as(parameter)
        return moved
