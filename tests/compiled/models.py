"""Small models that are trained compiled; each returns its loss, so that nothing else outlives forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, ROWS, LENGTH = 32, 4, 16

Built = tuple[nn.Module, tuple[Tensor, ...]]


class Attention(nn.Module):
    """A transformer's block, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second, self.wide, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        y: Tensor = x + self.dropout(self.narrow(nn.functional.gelu(self.wide(self.second(x)))))
        return y


class Language(nn.Module):
    """Blocks and a head; where it `breaks`, its graph does so twice."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = Attention(), Attention(), nn.Linear(WIDTH, 50)
        self.breaks = breaks

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.first(x)
        if self.breaks:
            torch._dynamo.graph_break()
        x = self.second(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Looped(nn.Module):
    """Its graph breaks in a loop: the blocks are compiled, two of them as one graph, and nothing else is."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x


class Convolution(nn.Module):
    """Residual blocks of convolutions and batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
            for _ in range(3)
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), labels)


def language(breaks: bool = False) -> Built:
    torch.manual_seed(0)
    return Language(breaks), (torch.randn(ROWS, LENGTH, WIDTH), torch.randint(0, 50, (ROWS, LENGTH)))


def three_graphs() -> Built:
    return language(breaks=True)


def looped() -> Built:
    torch.manual_seed(0)
    return Looped(), (torch.randn(ROWS, LENGTH, WIDTH),)


def convolution() -> Built:
    torch.manual_seed(0)
    return Convolution(), (torch.randn(4, 3, 24, 24), torch.randint(0, 10, (4,)))


MODELS: dict[str, Callable[[], Built]] = {
    "language": language,
    "three graphs": three_graphs,
    "convolution": convolution,
    "looped": looped,
}


class Narrow(nn.Module):
    """A model of which little has to be compiled."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, width), nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outer(torch.sin(nn.functional.gelu(self.inner(x))))
        return y.square().mean()


BATCH = (torch.ones(64, 16),)
"""For `Narrow`."""


def outside(model: nn.Module) -> Any:
    """Compile a model as a whole, without a compiler of C++."""
    return torch.compile(model, backend="aot_eager")
