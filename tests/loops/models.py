"""The models that the loops train: small, with dropout, a buffer that moves and a number that counts."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["WIDTH", "Block", "Compiled", "Layerdrop", "Network", "Partly", "deep", "loss_of", "network"]

WIDTH = 64


class Block(nn.Module):
    """A residual block."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        inner: Tensor = self.dropout(self.narrow(nn.functional.gelu(self.widen(self.norm(hidden)))))
        return hidden + inner


class Network(nn.Module):
    """Blocks between two layers; counts its forwards, and keeps a running mean."""

    mean: Tensor

    def __init__(self, blocks: int = 5, dropout: float = 0.1, *, counting: bool = True) -> None:
        super().__init__()
        self.counting = counting
        self.enter = nn.Linear(32, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(blocks))
        self.leave = nn.Linear(WIDTH, 8)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.forwards = 0

    def forward(self, batch: Tensor) -> Tensor:
        self.forwards += self.counting
        hidden = self.enter(batch)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(hidden.float().mean(0), 0.1)
        out: Tensor = self.leave(self.body(hidden))
        return out

    def body(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class Partly(Network):
    """Half of its blocks are recomputed by torch's own checkpoint."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def body(self, hidden: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            recomputed = number % 2 == 1
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant) if recomputed else block(hidden)
        return hidden


class Layerdrop(Network):
    """Leaves blocks out at random, by Python's generator or torch's."""

    def __init__(self, *, torchs: bool) -> None:
        super().__init__()
        self.torchs = torchs

    def body(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            drawn = float(torch.rand([])) if self.torchs else random.random()
            if not self.training or drawn >= 0.3:
                hidden = block(hidden)
        return hidden


class Compiled(Network):
    """Some of its blocks are compiled."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        for number in (1, 3):
            self.blocks[number].compile(backend=backend)


def network() -> nn.Module:
    return Network()


def deep() -> nn.Module:
    """One that can be brought far below what its plain step holds, whatever stands beside it."""
    return Network(8)


def loss_of(outputs: Tensor) -> Tensor:
    """A loss that no model knows of."""
    return nn.functional.cross_entropy(outputs, outputs.detach().argmin(-1)) + 0.01 * outputs.square().mean()
