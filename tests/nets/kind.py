"""What a row of the table says: a kind of hidden state, and what becomes of a training that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

__all__ = [
    "BLOCKS",
    "EVERY_WAY",
    "LOUD",
    "WIDTH",
    "Before",
    "Block",
    "Kind",
    "Network",
    "Outcome",
    "Step",
    "Within",
    "batch_of",
    "layers",
    "plain_step",
]

WIDTH = 16

BLOCKS = tuple(f"layers.{i}" for i in range(4))

EVERY_WAY = ("given", "given, in one", "planned")
"""A plan by hand with a segment for each block; one with a segment for all; the budget "lowest"."""


class Block(nn.Module):
    """A residual block; kinds read what is hidden in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def scaled(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """What the block computes, with a number that something hidden decides."""
        out: Tensor = x + self.narrow(gelu(self.widen(x) * scale))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x)


class Before(Block):
    """Does something with what it is given, before it computes."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.act(x))


class Within(Block):
    """Has something else in the place of its activation."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(self.act(self.widen(x)))
        return out


class Network(nn.Module):
    """Blocks one after the other."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 8)

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Outcome(Enum):
    """What may become of a training."""

    EXACT = "every bit that of the plain training, and nothing said"
    REFUSED = "every bit that of the plain training, and the call is named as one that is kept"
    RAISES = "a ReplayError in the first step that would differ"


LOUD = tuple(Outcome)

Step: TypeAlias = Callable[[nn.Module, int, bool], Tensor]
"""Takes the model, the number of the step, and whether it is a late one: one after the rehearsal. Runs forward and
backward, and returns the loss."""


def layers(model: nn.Module) -> Iterator[Any]:
    """The blocks of a model."""
    assert isinstance(model.layers, nn.ModuleList)
    return iter(model.layers)


def batch_of(number: int) -> Tensor:
    """The batch of a step, the same each time."""
    return torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(100 + number))


def plain_step(model: nn.Module, number: int, late: bool) -> Tensor:
    loss: Tensor = model(batch_of(number)).square().mean()
    loss.backward()
    return loss


def nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """A training in which a replay could see something else than its forward did.

    Attributes:
        name: what is hidden.
        given: what becomes of it under a plan by hand that recomputes every block.
        planned: what may become of it under the budget "lowest"; a plan may leave alone what is hidden.
        block: makes a block of the model.
        network: makes the model from the block.
        step: forward and backward.
        begin: sets up what is outside of the model.
        outside: reads it.
        waits: ways in which it does not end so yet, with the reasons.
    """

    name: str
    given: Outcome
    planned: tuple[Outcome, ...] = (Outcome.EXACT, Outcome.REFUSED)
    block: Callable[[], nn.Module] = Block
    network: Callable[[Callable[[], nn.Module]], nn.Module] = Network
    step: Step = plain_step
    begin: Callable[[], object] = nothing
    outside: Callable[[], object] = nothing
    waits: Mapping[str, str] = field(default_factory=dict)
