"""State that Python objects hold and no tensor shows: what makes it, and the number that each forward takes of it."""

from __future__ import annotations

import array
import collections
import io
import itertools
import random
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["HIDDEN", "Hidden"]


@dataclass(frozen=True, slots=True)
class Hidden:
    """Something in which a module can hide state.

    Attributes:
        make: makes it, at its beginning.
        number: takes a number of it, about 1; the next one is another.
    """

    make: Callable[[], Any]
    number: Callable[[Any], float]


def of_thread() -> Any:
    own = threading.local()
    own.count = 0
    return own


def numbers() -> Iterator[float]:
    """Stands at the same line every time, with other values."""
    value = 1.0
    while True:
        value += 0.1
        yield value


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


def closure() -> Callable[[], int]:
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return count

    return counted


def counted(holder: Any) -> float:
    holder.count += 1
    return 1 + 0.1 * float(holder.count)


def called(holder: Callable[[], int]) -> float:
    return 1 + 0.1 * holder()


def uniform(generator: Any) -> float:
    return float(generator.uniform(0.5, 1.5))


def in_place(holder: Any) -> float:
    holder[0] += 1
    return 1 + 0.1 * float(holder[0])


def averaged(average: Any) -> float:
    average *= 0.9
    average += 0.1
    return 1 + float(average[0])


def remembered(past: collections.deque[float]) -> float:
    past.append(past[-1] + 0.1)
    return 1 + past[-1]


def three_deep(state: dict[str, dict[str, dict[str, int]]]) -> float:
    state["a"]["b"]["c"] += 1
    return 1 + 0.1 * state["a"]["b"]["c"]


def grown(history: list[int]) -> float:
    history.append(1)
    return 1 + 0.1 * len(history)


def lines(stream: io.StringIO) -> float:
    stream.write("called\n")
    return 1 + 0.1 * len(stream.getvalue().splitlines())


HIDDEN = {
    "a generator of numpy's in an attribute": Hidden(lambda: np.random.default_rng(0), uniform),
    "a random.Random in an attribute": Hidden(lambda: random.Random(0), uniform),
    "an itertools.count": Hidden(lambda: itertools.count(1), lambda count: 1 + 0.1 * next(count)),
    "a generator function": Hidden(numbers, next),
    "values of a thread": Hidden(of_thread, counted),
    "a deque": Hidden(lambda: collections.deque([0.0], maxlen=4), remembered),
    "an array that averages": Hidden(lambda: np.zeros(1), averaged),
    "a dictionary, three deep": Hidden(lambda: {"a": {"b": {"c": 0}}}, three_deep),
    "an object with slots": Hidden(Slotted, counted),
    "an object with attributes": Hidden(lambda: types.SimpleNamespace(count=0), counted),
    "a callable object": Hidden(Callback, called),
    "a closure": Hidden(closure, called),
    "a list that grows": Hidden(list, grown),
    "a bytearray": Hidden(lambda: bytearray(1), in_place),
    "an array": Hidden(lambda: array.array("l", [0]), in_place),
    "a stream in memory": Hidden(io.StringIO, lines),
}
