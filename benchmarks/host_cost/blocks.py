"""Blocks of the sizes that people recompute, on tensors too small to take time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["BLOCKS", "Stack", "batch"]

WIDTH = 16
TOKENS = 8


class Stack(nn.Module):
    """Runs its blocks one after the other, each through `call` where there is one."""

    def __init__(self, make: Callable[[], nn.Module], depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(depth))
        self.call: Callable[..., Tensor] | None = None

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        call = self.call
        for block in self.blocks:
            hidden = block(hidden, mask) if call is None else call(block, hidden, mask)
        return hidden


class Perceptron(nn.Module):
    """Two layers, nothing random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.relu(self.first(hidden))))


class Transformer(nn.Module):
    """Attention and a perceptron with residuals; optionally dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        heads = self.query_key_value(self.norm(hidden)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        hidden = hidden + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        inner = nn.functional.gelu(self.up(self.other_norm(hidden)))
        return torch.tanh(hidden + self.dropout(self.down(inner)))


class Normalised(nn.Module):
    """Two linear layers with batch normalisation, whose statistics a replay must not count twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(TOKENS), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(TOKENS)
        )

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.layers(hidden))
        return out


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "two linear layers": Perceptron,
    "transformer block": lambda: Transformer(0.0),
    "transformer block, dropout": lambda: Transformer(0.1),
    "linear and batch norm": Normalised,
}


def batch(device: str) -> tuple[Tensor, Tensor]:
    """Hidden states and an additive mask."""
    return torch.randn(2, TOKENS, WIDTH, device=device), torch.zeros(TOKENS, TOKENS, device=device)
