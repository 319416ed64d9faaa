"""Stand-ins for kernels that keep state outside of buffers: histories of scales, casts, statistics, locks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from tests.nets.kernel_codes import State
from tests.nets.kernel_writes import poke
from tests.nets.kind import WIDTH, Block, batch_of

__all__ = [
    "InContext",
    "Locks",
    "Scaling",
    "Statistics",
    "Workspace",
    "begin_anew",
    "in_attribute",
    "in_context",
    "in_global",
    "in_object",
    "outside",
    "seen",
]

LONGEST = 4
"""Steps that a history of scales has."""


class Scaling(Block):
    """Scales by the largest value that it has seen in some steps, and rolls that history, wherever it is."""

    def __init__(self, history: Callable[[Scaling], Tensor], roll: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.history, self.roll = history, roll
        self.amax = torch.ones(LONGEST)
        self.meta = {"forward": State(torch.ones(LONGEST, LONGEST))}
        self.meta["forward"].scales = torch.ones(LONGEST)

    def forward(self, x: Tensor) -> Tensor:
        history = self.history(self)
        scale = history.amax().clone()
        self.roll(history, torch.cat([x.detach().abs().amax().reshape(1), history[:-1]]))
        rounded = x + ((x / scale * 16).round() / 16 * scale - x).detach()
        return self.scaled(rounded)


def in_attribute(block: Scaling) -> Tensor:
    return block.amax


def in_object(block: Scaling) -> Tensor:
    return block.meta["forward"].scales


HISTORIES: dict[str, Tensor] = {}


def in_global(block: Scaling) -> Tensor:
    return HISTORIES.setdefault("all", torch.ones(LONGEST))


def seen(history: Tensor, new: Tensor) -> None:
    history.copy_(new)


class OfClass:
    """What is on, and the scales of every layer, rolled as a context ends."""

    on = False
    histories: list[Tensor] = []  # noqa: RUF012 - as it is in libraries


class InContext(Block):
    """Rounds while a class says so, by a scale of the class's."""

    def forward(self, x: Tensor) -> Tensor:
        if not OfClass.on:
            return self.scaled(x)
        scale = OfClass.histories[0].amax().clone()
        poke(OfClass.histories[0][:1], torch.maximum(OfClass.histories[0][:1], x.detach().abs().amax()))
        return self.scaled(x + ((x / scale * 16).round() / 16 * scale - x).detach())


@contextlib.contextmanager
def eight_bits() -> Iterator[None]:
    """On in forward only; what was seen there is rolled at its end."""
    OfClass.on = True
    yield
    OfClass.on = False
    poke(OfClass.histories[0], OfClass.histories[0].roll(1))


def in_context(model: nn.Module, number: int, late: bool) -> Tensor:
    with eight_bits():
        loss: Tensor = model(batch_of(number)).square().mean()
    loss.backward()
    return loss


class Statistics(Block):
    """A normalisation that moves its statistics through pointers."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out = self.scaled(x - self.mean.clone())
        poke(self.mean, self.mean * 0.9 + x.detach().mean(0) * 0.1)
        return out


class Workspace(Block):
    """A cast of the weight, made anew through a pointer where the weight has another version."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace, self.made_of = torch.empty(4 * WIDTH, WIDTH), -1

    def forward(self, x: Tensor) -> Tensor:
        if self.made_of != self.widen.weight._version:
            poke(self.workspace, self.widen.weight.half().float())
            self.made_of = self.widen.weight._version
        wide = x @ self.workspace.T + linear(x, self.widen.weight) * 0.1
        out: Tensor = x + self.narrow(gelu(wide))
        return out


LOCKS = torch.zeros(8, dtype=torch.int32)


class Locks(Block):
    """A kernel whose blocks count in a global, and leave it as they found it."""

    def forward(self, x: Tensor) -> Tensor:
        poke(LOCKS, LOCKS + 1)
        out = self.scaled(x, float(LOCKS.sum() / 8))
        poke(LOCKS, LOCKS - 1)
        return out


def begin_anew() -> None:
    HISTORIES.clear()
    OfClass.on, OfClass.histories = False, [torch.ones(LONGEST)]
    LOCKS.zero_()


def outside() -> object:
    return [*HISTORIES.values()], OfClass.histories, OfClass.on, LOCKS
