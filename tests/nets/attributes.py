"""Kinds of state inside attributes of modules, and around them: in what Python objects hold."""

from __future__ import annotations

import collections
import contextvars
import itertools
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from tests.nets.kind import Block, Kind, Outcome

__all__ = ["ATTRIBUTES"]


class NumpyGenerator(Block):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, float(self.generator.uniform(0.5, 1.5)))


class PythonGenerator(Block):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, self.generator.uniform(0.5, 1.5))


class Count(Block):
    def __init__(self) -> None:
        super().__init__()
        self.count = itertools.count(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, 1 + 0.1 * next(self.count))


def numbers() -> Iterator[float]:
    value = 1.0
    while True:
        value += 0.1
        yield value


class GeneratorFunction(Block):
    """A generator stands at the same line every time, with other values."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = numbers()

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, next(self.numbers))


class OfThread(Block):
    def __init__(self) -> None:
        super().__init__()
        self.own = threading.local()
        self.own.value = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.own.value += 0.1
        return self.scaled(x, self.own.value)


class Deque(Block):
    def __init__(self) -> None:
        super().__init__()
        self.past = collections.deque([0.0], maxlen=4)

    def forward(self, x: Tensor) -> Tensor:
        self.past.append(self.past[-1] + 0.1)
        return self.scaled(x, 1 + self.past[-1])


class Array(Block):
    def __init__(self) -> None:
        super().__init__()
        self.average = np.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.average *= 0.9
        self.average += 0.1 * float(x.detach().abs().mean())
        return self.scaled(x, 1 + float(self.average[0]))


class Nested(Block):
    def __init__(self) -> None:
        super().__init__()
        self.state = {"a": {"b": {"c": 0}}}

    def forward(self, x: Tensor) -> Tensor:
        self.state["a"]["b"]["c"] += 1
        return self.scaled(x, 1 + 0.1 * self.state["a"]["b"]["c"])


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Callback:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


class InObject(Block):
    """Counts in an object of some class."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.state = make()

    def forward(self, x: Tensor) -> Tensor:
        self.state.count += 1
        return self.scaled(x, 1 + 0.1 * self.state.count)


class CallableObject(Block):
    def __init__(self) -> None:
        super().__init__()
        self.state = Callback()

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, 1 + 0.1 * self.state())


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


class InClosure(Block):
    def __init__(self) -> None:
        super().__init__()
        count = 0

        def counted() -> int:
            nonlocal count
            count += 1
            return count

        self.counted = counted

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, 1 + 0.1 * self.counted())


class Counter(Block):
    """Counts in an attribute; `reads` says whether anything comes of it."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.count, self.reads = 0, reads

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.scaled(x, 1 + 0.1 * self.count * self.reads)


class Growing(Block):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.history.append(1)
        return self.scaled(x, 1 + 0.1 * len(self.history))


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
    _kind("a generator of numpy's in an attribute", NumpyGenerator),
    _kind("a random.Random in an attribute", PythonGenerator),
    _kind("an itertools.count", Count),
    _kind("a generator function", GeneratorFunction),
    _kind("values of a thread", OfThread),
    _kind("a deque", Deque),
    _kind("an array that averages", Array),
    _kind("a dictionary, three deep", Nested),
    _kind("an object with slots", lambda: InObject(Slotted)),
    _kind("an object with attributes", lambda: InObject(lambda: types.SimpleNamespace(count=0))),
    _kind("a callable object", CallableObject),
    _kind("an attribute of a class", InClass, begin=count_anew, outside=lambda: InClass.count),
    _kind("a variable of a file", InModule, begin=count_anew, outside=lambda: steps_seen),
    _kind("a context variable", InContext, Outcome.EXACT, begin=count_anew, outside=POSITION.get),
    _kind("a closure", InClosure),
    _kind("a counter", lambda: Counter(True), Outcome.EXACT),
    _kind("a counter that nothing reads", lambda: Counter(False), Outcome.EXACT),
    _kind("a list that grows", Growing),
    _kind("every second call is another", Periodic, Outcome.EXACT),
    _kind("the first call is another", FirstDiffers, Outcome.EXACT),
)
