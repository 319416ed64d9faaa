"""Leaves and containers with state that Python objects hold and no tensor shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from tests.fuzz.leaves import WIDTH
from tests.toys.hidden import HIDDEN as OBJECTS
from tests.toys.hidden import Hidden

__all__ = ["HIDDEN", "HIDDEN_CONTAINERS", "Empties", "Layerdrop", "hooked"]


class Scales(nn.Module):
    """Scales what it saves by a number out of an object of its own, from its `first` call on."""

    def __init__(self, hidden: Hidden, first: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.hidden, self.number, self.first = hidden.make(), hidden.number, first
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.calls < self.first
        scale = self.number(self.hidden) if self.calls >= self.first else 1.0
        out: Tensor = torch.tanh(self.linear(x) * scale)
        return out


HIDDEN: dict[str, Callable[[], nn.Module]] = {
    "NumpyRandom": partial(Scales, Hidden(lambda: None, lambda _: float(np.random.uniform(0.5, 1.5)))),
    "NumpyGenerator": partial(Scales, OBJECTS["a generator of numpy's in an attribute"]),
    "PythonGenerator": partial(Scales, OBJECTS["a random.Random in an attribute"]),
    "CountsInObject": partial(Scales, OBJECTS["an object with attributes"]),
    "CountsInClosure": partial(Scales, OBJECTS["a closure"]),
    "InDeque": partial(Scales, OBJECTS["a deque"]),
    "InArray": partial(Scales, OBJECTS["an array that averages"]),
    "CountsLater": partial(Scales, OBJECTS["an object with attributes"], first=2),
    "PythonGeneratorLater": partial(Scales, OBJECTS["a random.Random in an attribute"], first=2),
}


class Takes(nn.Module):
    """Takes an element out of a list that it is given."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, given: list[Tensor]) -> Tensor:
        out: Tensor = self.child(given.pop(0))
        return out * given[0]


class Empties(nn.Module):
    """Gives its children a list, of which they take the first."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(map(Takes, children))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part([x, x.sigmoid()])
        return x


class Layerdrop(nn.Module):
    """Leaves children out at random, by Python's generator."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(children)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            if random.random() < 0.6:
                x = part(x)
        return x


HIDDEN_CONTAINERS: dict[str, Callable[..., nn.Module]] = {"Empties": Empties, "Layerdrop": Layerdrop}


@contextmanager
def hooked(model: nn.Module) -> Iterator[None]:
    """Have hooks on every linear layer, which change what it is given and returns."""
    handles = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            handles.append(module.register_forward_pre_hook(lambda module, args: (args[0] * 1.5,)))
            handles.append(module.register_forward_hook(lambda module, args, out: out.sin()))
    yield
    for handle in handles:
        handle.remove()
