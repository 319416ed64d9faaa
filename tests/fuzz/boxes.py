"""Children that take and return containers of every kind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

__all__ = ["BOXES", "Boxed", "flat"]


@dataclass
class Parts:
    left: Tensor
    rest: dict[str, Any]
    label: str = "parts"


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Output(OrderedDict[str, Any]):
    """A dictionary with attributes, as libraries return them."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


BOXES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "Tuple": lambda left, right: (left, None, right),
    "List": lambda left, right: [left, right],
    "Dict": lambda left, right: {"left": left, 2: [right, "x"]},
    "Pair": Pair,
    "Parts": lambda left, right: Parts(left, {"right": (right,), "none": None}),
    "Output": lambda left, right: Output(left=left, right=right),
    "Nested": lambda left, right: ({"a": [Pair(left, right)]}, Parts(right, {"again": left})),
}


def flat(value: Any) -> list[Tensor]:
    """Return the tensors in `value`. Not autockpt's own way, which is under test."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in flat(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flat(item)]
    return flat(vars(value)) if isinstance(value, Parts) else []


class Stage(nn.Module):
    """Takes a box and returns another."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any], child: nn.Module) -> None:
        super().__init__()
        self.child = child
        self.pack = pack

    def forward(self, box: Any) -> Any:
        left, *_, right = flat(box)
        return self.pack(self.child(left), (left + right).tanh())


class Boxed(nn.Module):
    """Hands boxes from child to child, and empties them afterwards where that can be done."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any], *children: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Stage(pack, child) for child in children)
        self.pack = pack

    def forward(self, x: Tensor) -> Tensor:
        box = self.pack(x, x * 2)
        for part in self.parts:
            given, box = box, part(box)
            if isinstance(given, (dict, list)):
                given.clear()
        left, *_, right = flat(box)
        return left * right
