"""Kinds of random numbers: of torch, Python and numpy, from the first step on or only later."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from tests.nets.kind import LOUD, Block, Kind, Outcome, layers, plain_step

__all__ = ["GENERATORS"]

GLOBAL = torch.Generator()
NUMPYS = np.random.default_rng(0)
PYTHONS = random.Random(0)


def seed() -> None:
    GLOBAL.manual_seed(0)
    NUMPYS.bit_generator.state = np.random.default_rng(0).bit_generator.state
    PYTHONS.seed(0)


class Scaled(Block):
    """Scales by a number that it draws."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, 0.5 + self.draw())


class Masked(Block):
    """Masks by what it draws from a generator of torch's."""

    def __init__(self, find: Callable[[Masked], torch.Generator | None]) -> None:
        super().__init__()
        self.find = find
        self.generator = torch.Generator().manual_seed(0)
        self.inside = types.SimpleNamespace(generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x * (torch.rand(x.shape, generator=self.find(self)) > 0.1))


class Forks(Block):
    """Draws, and puts the generator back."""

    def __init__(self, seeds: bool) -> None:
        super().__init__()
        self.seeds = seeds

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=()):
            if self.seeds:
                torch.manual_seed(3)
            mask = torch.rand(x.shape) > 0.1
        return self.scaled(x * mask)


class Seeds(Block):
    """Seeds the global generators itself."""

    def forward(self, x: Tensor) -> Tensor:
        random.seed(5)
        np.random.seed(5)
        return self.scaled(dropout(x, 0.1), random.random() + float(np.random.uniform()))


class Unused(Block):
    def forward(self, x: Tensor) -> Tensor:
        random.random()
        np.random.uniform()
        return self.scaled(x)


class Everything(Block):
    """Draws from all that there are."""

    def forward(self, x: Tensor) -> Tensor:
        number = random.random() + float(np.random.uniform())
        return dropout(self.scaled(dropout(x, 0.1), number), 0.1)


class Later(Block):
    """Draws from some step on only."""

    late = False

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, 0.5 + self.draw() if self.late else 1.0)


class Layerdrop(Block):
    """Does nothing, now and then, from some step on."""

    late = False

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x if self.late and self.draw() < 0.5 else self.scaled(x)


class LaterInAttribute(Later):
    """Draws from a generator of its own, from some step on only."""

    def __init__(self) -> None:
        self.generator = random.Random(0)
        super().__init__(self.generator.random)


def late_step(model: nn.Module, number: int, late: bool) -> Tensor:
    for layer in layers(model):
        layer.late = late
    return plain_step(model, number, late)


def torchs() -> float:
    return float(torch.rand([]))


def numpys() -> float:
    return float(np.random.uniform())


def _kind(name: str, block: Callable[[], nn.Module], given: Outcome, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, begin=seed, outside=_outside, **others)


def _outside() -> object:
    return [GLOBAL, NUMPYS, PYTHONS]


GENERATORS: tuple[Kind, ...] = (
    _kind("Python's generator", lambda: Scaled(random.random), Outcome.EXACT),
    _kind("numpy's global generator", lambda: Scaled(numpys), Outcome.EXACT),
    _kind("torch's generator, read into Python", lambda: Scaled(torchs), Outcome.EXACT),
    _kind("Python's and numpy's, for nothing", Unused, Outcome.EXACT),
    _kind("all at once", Everything, Outcome.EXACT),
    _kind("a call that seeds Python's and numpy's", Seeds, Outcome.EXACT),
    _kind("a random.Random of a file", lambda: Scaled(lambda: PYTHONS.random()), Outcome.REFUSED),
    _kind(
        "a method of a random.Random",
        lambda: Scaled(PYTHONS.random),
        Outcome.REFUSED,
    ),
    _kind("a generator of numpy's of a file", lambda: Scaled(lambda: float(NUMPYS.uniform())), Outcome.REFUSED),
    _kind("a generator of torch's of a file", lambda: Masked(lambda _: GLOBAL), Outcome.EXACT),
    _kind("a generator of torch's in an attribute", lambda: Masked(lambda self: self.generator), Outcome.EXACT),
    _kind("a generator of torch's two deep", lambda: Masked(lambda self: self.inside.generator), Outcome.EXACT),
    _kind("fork_rng", lambda: Forks(False), Outcome.EXACT),
    _kind("fork_rng with a seed", lambda: Forks(True), Outcome.EXACT),
    _kind("Python's generator, later", lambda: Later(random.random), Outcome.EXACT, step=late_step),
    _kind("numpy's global generator, later", lambda: Later(numpys), Outcome.EXACT, step=late_step),
    _kind("a random.Random in an attribute, later", LaterInAttribute, Outcome.RAISES, step=late_step, planned=LOUD),
    _kind("layerdrop by Python's generator, later", lambda: Layerdrop(random.random), Outcome.EXACT, step=late_step),
    _kind("layerdrop by torch's generator, later", lambda: Layerdrop(torchs), Outcome.EXACT, step=late_step),
)
