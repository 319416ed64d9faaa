"""Blocks one after the other, and modules inside one another: the shapes that most models have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import gelu

__all__ = ["InTurn", "Nested", "Residual", "feed_forward", "through"]


def feed_forward(width: int, wider: int = 4) -> nn.Sequential:
    """Two layers with an activation between them, that are called ``0``, ``1`` and ``2``."""
    return nn.Sequential(nn.Linear(width, wider * width), nn.GELU(), nn.Linear(wider * width, width))


class Residual(nn.Module):
    """What a feed-forward block of a transformer is: it saves several times its input."""

    def __init__(self, width: int, wider: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, wider * width), nn.Linear(wider * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(gelu(self.up(self.norm(x))))
        return out


def through(blocks: Iterable[Any], x: Any, *given: Any) -> Any:
    """Run blocks one after the other, each with what else is given; return what the last one returns."""
    for block in blocks:
        x = block(x, *given)
    return x


def just(number: int, block: nn.Module, x: Tensor) -> Any:
    return block(x)


class InTurn(nn.Module):
    """Runs its blocks one after the other in its own code, and what comes `last`.

    What `run` says of each is given its number, the block itself and what the one before returned.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        run: Callable[[int, nn.Module, Tensor], Any] = just,
        last: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.blocks, self.run, self.last = nn.ModuleList(blocks), run, last

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = self.run(number, block, x)
        return x if self.last is None else self.last(x)


class Nested(nn.Module):
    """A module in a module in a module, each with a layer and functions of its own."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.inner = Nested(depth - 1, width) if depth > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        x = gelu(self.linear(x))
        return x if self.inner is None else x + self.inner(x)
