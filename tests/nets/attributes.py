"""Kinds of state inside attributes of modules, and around them: in what Python objects hold."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from tests.nets.kind import Block, Kind, Outcome
from tests.toys.hidden import HIDDEN, Hidden

__all__ = ["ATTRIBUTES"]


class Holds(Block):
    """Scales by a number of something that it holds in an attribute."""

    def __init__(self, hidden: Hidden) -> None:
        super().__init__()
        self.state, self.number = hidden.make(), hidden.number

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, self.number(self.state))


class InClass(Block):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        InClass.count += 1
        return self.scaled(x, 1 + 0.1 * InClass.count)


steps_seen = 0


def count_anew() -> None:
    global steps_seen
    steps_seen = InClass.count = 0
    POSITION.set(0)


class InModule(Block):
    """Counts in a variable of the file that its class is in."""

    def forward(self, x: Tensor) -> Tensor:
        global steps_seen
        steps_seen += 1
        return self.scaled(x, 1 + 0.1 * steps_seen)


POSITION: contextvars.ContextVar[int] = contextvars.ContextVar("position", default=0)


class InContext(Block):
    def forward(self, x: Tensor) -> Tensor:
        POSITION.set(POSITION.get() + 1)
        return self.scaled(x, 1 + 0.1 * POSITION.get())


class Counter(Block):
    """Counts in an attribute; `reads` says whether anything comes of it."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.count, self.reads = 0, reads

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.scaled(x, 1 + 0.1 * self.count * self.reads)


class Periodic(Block):
    """Every second call is another: a replay of one is as the other."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = False

    def forward(self, x: Tensor) -> Tensor:
        self.odd = not self.odd
        return self.scaled(x, 1.1 if self.odd else 1.0)


class FirstDiffers(Block):
    """Starts itself up in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.started = False

    def forward(self, x: Tensor) -> Tensor:
        scale, self.started = 3.0 if self.started else 1.0, True
        return self.scaled(x, scale)


def _kind(name: str, block: Callable[[], nn.Module], given: Outcome = Outcome.REFUSED, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, **others)


ATTRIBUTES: tuple[Kind, ...] = (
    *(_kind(name, partial(Holds, hidden)) for name, hidden in HIDDEN.items()),
    _kind("an attribute of a class", InClass, begin=count_anew, outside=lambda: InClass.count),
    _kind("a variable of a file", InModule, begin=count_anew, outside=lambda: steps_seen),
    _kind("a context variable", InContext, Outcome.EXACT, begin=count_anew, outside=POSITION.get),
    _kind("a counter", lambda: Counter(True), Outcome.EXACT),
    _kind("a counter that nothing reads", lambda: Counter(False), Outcome.EXACT),
    _kind("every second call is another", Periodic, Outcome.EXACT),
    _kind("the first call is another", FirstDiffers, Outcome.EXACT),
)
