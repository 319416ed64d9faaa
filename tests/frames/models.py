"""Small models, each with something that a naive recomputation gets wrong."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WIDTH = 8


def batch(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).reshape(shape)


def summed(model: nn.Module) -> Tensor:
    loss: Tensor = model(batch(4, WIDTH)).square().sum()
    return loss


def penalised(model: nn.Module) -> Tensor:
    """A loss with its gradient in it, so that backward runs twice; once more while its graph is kept."""
    x = batch(4, WIDTH).requires_grad_()
    loss = model(x).square().sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    loss.backward(retain_graph=True)
    total: Tensor = gradient.square().sum() + loss
    return total


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3))))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Conv2d(3 if not i else 4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        for i in range(3)
    ]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(4 * 36, 2))


def images(model: nn.Module) -> Tensor:
    loss: Tensor = model(batch(2, 3, 6, 6)).square().mean()
    return loss


class Block(nn.Module):
    """Takes a mask by keyword and returns a tuple with a None in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, hidden: Tensor, scale: float = 1.0, *, mask: Tensor) -> tuple[Tensor, None, Tensor]:
        inner = self.dropout(torch.relu(self.first(self.norm(hidden)))) * scale
        return hidden + self.second(inner) * mask, None, inner.mean()


class Tower(nn.Module):
    """Blocks in a list, with glue and random numbers between them, and an exit that moves from step to step."""

    def __init__(self, depth: int = 5, *, early: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 1)
        self.early = early
        self.step = 0

    def forward(self, hidden: Tensor) -> Tensor:
        mask = (torch.rand_like(hidden) > 0.2).float()
        extra = []
        self.step += 1
        for index, block in enumerate(self.blocks):
            if self.early and index == 2 + self.step % 3:
                break
            hidden, _, statistic = block(hidden, scale=0.5 + index, mask=mask)
            extra.append(statistic)
            if index % 2:
                hidden = nn.functional.dropout(hidden.tanh(), 0.1)
        out: Tensor = self.head(hidden) + torch.stack(extra).sum()
        return out


class Twice(nn.Module):
    """Runs one block twice and shares a layer between two parents."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2))
        self.other = nn.Sequential(nn.Linear(WIDTH, WIDTH), self.block[0])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x).relu() + self.other(self.block(x + 1))
        return out


@dataclass
class Parts:
    left: Tensor
    rest: dict[str, Tensor]
    label: str = "parts"


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Containers(nn.Module):
    """Hands containers of every kind from one member to the next, and changes them afterwards."""

    class Stage(nn.Module):
        def __init__(self, returns: Callable[[Tensor, Tensor], Any]) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.returns = returns

        def forward(self, given: Any) -> Any:
            if isinstance(given, Parts):
                left, right = given.left, given.rest["right"]
            elif isinstance(given, dict):
                left, right = given["left"], given["right"]
            else:
                left, right = given[0], given[-1]
            return self.returns(torch.sigmoid(self.linear(left)), (left + right).tanh())

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kinds: list[Callable[[Tensor, Tensor], Any]] = [
            as_list,
            as_tuple,
            as_dict,
            as_ordered,
            as_parts,
            Pair,
            as_tuple,
        ]
        self.stages = nn.ModuleList(self.Stage(kind) for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        value: Any = [x, x * 2]
        for stage in self.stages:
            given, value = value, stage(value)
            if isinstance(given, list):
                given.append(torch.zeros(1))
            if isinstance(given, dict):
                given.clear()
        out: Tensor = value[0] * value[1]
        return out


def as_list(left: Tensor, right: Tensor) -> list[Tensor]:
    return [left, right]


def as_tuple(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return left, right


def as_dict(left: Tensor, right: Tensor) -> dict[str, Tensor]:
    return {"left": left, "right": right}


def as_ordered(left: Tensor, right: Tensor) -> OrderedDict[str, Tensor]:
    return OrderedDict(right=right, left=left)


def as_parts(left: Tensor, right: Tensor) -> Parts:
    return Parts(left, {"right": right})
