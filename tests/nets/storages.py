"""Kinds of state that no version counts: swapped storages, bytes, counters on classes and in hooks, gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.nets.kind import WIDTH, Before, Block, Kind, Network, Outcome

__all__ = ["STORAGES"]


class Swapped(Block):
    """Gives a buffer another storage in every forward; `reads` says whether anything comes of it."""

    def __init__(self, swap: Callable[[Tensor, Tensor], object], reads: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(32, WIDTH))
        self.swap, self.reads = swap, reads

    def forward(self, x: Tensor) -> Tensor:
        mean = self.get_buffer("mean")
        with torch.no_grad():
            self.swap(mean, mean * 0.9 + x.detach() * 0.1)
        return self.scaled(x * mean.clone() if self.reads else x)


def assign(buffer: Tensor, new: Tensor) -> None:
    buffer.data = new


def set_storage(buffer: Tensor, new: Tensor) -> None:
    buffer.set_(new)  # type: ignore[call-overload]


def refill(buffer: Tensor, new: Tensor) -> None:
    set_storage(buffer, torch.empty(0))
    buffer.resize_(new.shape).copy_(new)


class Codebook(nn.Module):
    """Reads a buffer, then moves it where nothing counts that."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.project(x)
        mean = self.get_buffer("mean")
        out = torch.tanh(made - mean.clone())
        mean.data.mul_(0.5).add_(made.detach().mean(0), alpha=0.5)
        return out


class Quantizes(Block):
    """Codebooks of which a step takes as many as it draws: more than were recorded, now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.codebooks = nn.ModuleList(Codebook() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        depth = int(torch.randint(1, 4, ()))
        out = self.scaled(x)
        for codebook in list(self.codebooks)[:depth]:
            out = out + codebook(x)
        return out


class CountsOnItsClass(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        CountsOnItsClass.calls += 1
        ctx.scale = 1 + 0.01 * CountsOnItsClass.calls
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        scaled: Tensor = gradients[0] * ctx.scale
        return scaled


def counts_on_its_class(x: Tensor) -> Tensor:
    return CountsOnItsClass.apply(x)  # type: ignore[no-untyped-call, no-any-return]


def begin_anew() -> None:
    CountsOnItsClass.calls = 0
    globals()["numbers"] = itertools.count(1)


numbers = itertools.count(1)


class Hooked(Block):
    """A hook scales what the block makes, the more the oftener it has fired."""

    def __init__(self) -> None:
        super().__init__()
        fired: list[int] = []

        def scale(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            fired.append(1)
            return output * (1 + 0.01 * len(fired))

        self.widen.register_forward_hook(scale)


class TakesGradients(Block):
    """A gradient inside forward, of which gradients are taken."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            energy = self.scaled(x).square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        out: Tensor = x - 0.01 * force
        return out


class Takes(Network):
    def body(self, x: Tensor) -> Tensor:
        return super().body(x.requires_grad_())


def through_nested(x: Tensor) -> Tensor:
    """Lengths of a nested tensor are told apart by the tensor that they came in."""
    nested = torch.nested.as_nested_tensor([x[:10], x[10:]], layout=torch.jagged)
    return torch.cat((nested * 2).sin().unbind())


def _kind(name: str, block: Callable[[], nn.Module], given: Outcome = Outcome.REFUSED, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, **others)


IN_FORWARD = {"planned": "what is saved is read in forward, so nothing is recomputed; nobody says so"}

STORAGES: tuple[Kind, ...] = (
    *(
        _kind(f"a buffer swapped by {swap.__name__}{', read' * reads}", partial(Swapped, swap, reads), Outcome.EXACT)
        for swap in (assign, set_storage, refill)
        for reads in (False, True)
    ),
    _kind("a counter on a class of functions", lambda: Before(counts_on_its_class), begin=begin_anew),
    _kind("an iterator in a global", lambda: Before(lambda x: x * (1 + 0.1 * next(numbers))), begin=begin_anew),
    _kind("codebooks of random depth", Quantizes, Outcome.EXACT),
    _kind("a hook that counts and scales", Hooked),
    _kind("gradients inside forward", TakesGradients, Outcome.EXACT, network=Takes, waits=IN_FORWARD),
    _kind("a nested tensor", lambda: Before(through_nested), Outcome.EXACT),
)
