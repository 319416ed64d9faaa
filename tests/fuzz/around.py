"""Containers that run their children under something: autocast, torch's own checkpoint, no gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["Cast", "Checkpointed", "Inner", "Without"]


class Inner(nn.Module):
    """A container whose children lie in a list."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(children)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Cast(Inner):
    """Runs its children under autocast, or without it."""

    def __init__(self, enabled: bool, *children: nn.Module) -> None:
        super().__init__(*children)
        self.enabled = enabled

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            out = super().forward(x if self.enabled else x.float())
        return out.float()


class Checkpointed(Inner):
    """Recomputes its children by torch's own means."""

    def __init__(self, reentrant: bool, *children: nn.Module) -> None:
        super().__init__(*children)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, use_reentrant=self.reentrant)
        return out


class Without(Inner):
    """Runs its children without gradients, or cuts them off."""

    def __init__(self, grad: bool, *children: nn.Module) -> None:
        super().__init__(*children)
        self.grad = grad

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.grad):
            y = super().forward(x)
        return x * y.detach()
