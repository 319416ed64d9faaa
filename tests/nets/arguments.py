"""Kinds of things that a call is handed beside its tensors, and of values that differ by order or sign only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.nets.kind import Block, Kind, Network, Outcome

__all__ = ["ARGUMENTS"]


class Takes(Block):
    """Takes an element out of a list that it is given."""

    def forward(self, x: Tensor, given: list[Tensor]) -> Tensor:  # type: ignore[override]
        return self.scaled(x) + given.pop(0)


class Handing(Network):
    """Gives its blocks one list after the other to empty."""

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, [x.sin(), x.cos()])
        return x


class Cache:
    def __init__(self) -> None:
        self.means: list[Tensor] = []


class Caching(Block):
    def forward(self, x: Tensor, cache: Cache) -> Tensor:  # type: ignore[override]
        cache.means.append(x.detach().mean())
        return self.scaled(x, 1 + 0.1 * len(cache.means))


class WithCache(Network):
    """Gives all of its blocks one cache."""

    def body(self, x: Tensor) -> Tensor:
        cache = Cache()
        for layer in self.layers:
            x = layer(x, cache)
        return x


class Reads(Block):
    """Reads a tensor that its caller left on it."""

    side: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x + self.side.sigmoid())


class Leaving(Network):
    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            layer.side = x * 2
        return super().body(x)


class ByNumpy(Block):
    """Computes with what a generator of numpy's, in an attribute, changes about its input."""

    def __init__(self, change: Callable[[np.random.Generator, Tensor], Tensor]) -> None:
        super().__init__()
        self.generator, self.change = np.random.default_rng(0), change

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.change(self.generator, x))


def shuffled(generator: np.random.Generator, x: Tensor) -> Tensor:
    """Reorder rows: what is saved has the same sum."""
    return x[torch.from_numpy(generator.permutation(len(x)))]


def flipped(generator: np.random.Generator, x: Tensor) -> Tensor:
    """Flip signs, so that what is saved has the same squares."""
    return x * torch.from_numpy(generator.choice([-1.0, 1.0], size=x.shape)).float()


def _kind(name: str, block: Callable[[], nn.Module], given: Outcome = Outcome.REFUSED, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, **others)


ARGUMENTS: tuple[Kind, ...] = (
    _kind("a callee that empties a list that it was given", Takes, Outcome.EXACT, network=Handing),
    _kind("a cache that blocks fill", Caching, Outcome.EXACT, network=WithCache),
    _kind("a tensor that the caller left on a block", Reads, Outcome.EXACT, network=Leaving),
    _kind("rows reordered by numpy", lambda: ByNumpy(shuffled)),
    _kind("signs flipped by numpy", lambda: ByNumpy(flipped)),
)
