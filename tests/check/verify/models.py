"""Small models, some with something that recomputation gets wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.toys.told import Told, with_linear

WIDTH = 8
BATCH = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)


def block(twist: Callable[[Told, Tensor], Tensor] | None = None) -> nn.Module:
    """Linear, BatchNorm, dropout, and whatever `twist` does to the result."""

    def act(own: Told, hidden: Tensor) -> Any:
        hidden = own.dropout(own.norm(own.linear(hidden)).tanh())
        return hidden if twist is None else twist(own, hidden).sigmoid()

    # A replay puts back attributes, and not what is inside them.
    return with_linear(act, WIDTH, norm=nn.BatchNorm1d(WIDTH), dropout=nn.Dropout(0.3), calls=[0])


def chain(*twists: Callable[[Told, Tensor], Tensor] | None) -> nn.Sequential:
    """A block for each twist, with a linear layer at the end."""
    torch.manual_seed(0)
    return nn.Sequential(*(block(twist) for twist in twists), nn.Linear(WIDTH, WIDTH))


def counting(block: Told, hidden: Tensor) -> Tensor:
    """Multiplies by how often the block was called: another number in the replay."""
    block.calls[0] += 1
    return hidden * int(block.calls[0])


def noise(block: Told, hidden: Tensor) -> Tensor:
    """Adds what no generator can repeat."""
    return hidden + int.from_bytes(os.urandom(3), "big") / 2**24


def growing(block: Told, hidden: Tensor) -> Tensor:
    """Saves one tensor more with every call."""
    block.calls[0] += 1
    for _ in range(block.calls[0]):
        hidden = hidden.tanh()
    return hidden


def unsteady(block: Told, hidden: Tensor) -> Tensor:
    """Fails or not, and saves what no generator can repeat: a depth of its own every time."""
    for _ in range(os.urandom(2)[0] + 1):
        hidden = noise(block, hidden).tanh()
    return hidden


def teaching(block: Told, hidden: Tensor) -> Tensor:
    """Changes a parameter behind autograd's back, as a teacher that follows its student does."""
    block.norm.bias.data.add_(0.5)
    return hidden


def writing(block: Told, hidden: Tensor) -> Tensor:
    """Changes a parameter that the replay reads, in plain sight of autograd."""
    with torch.no_grad():
        block.norm.bias.mul_(0.5)
    return hidden


def plain_chain() -> nn.Sequential:
    return chain(None, None, None)
