"""When a search has to end, and how far it is: one clock for all that plans.

    began ──── candidates ────┤ share ──── instant solvers ── integer programme ────┤ at
          2 s: "planning: 140 of 600 runs of calls looked at after 2.1 s", then every 2 s at most

Only `highs` looks at a clock too, to tell a failure. If no deadline passes, no result depends on time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")

EVERY = 2.0
"""Seconds before planning first says how far it is, and between two messages."""


class Progress:
    """Says what planning does, now and then.

    Args:
        say: is given each message, as a format and its arguments.
        clock: seconds; `time.perf_counter` if it is not given.
    """

    def __init__(self, say: Callable[..., object], clock: Callable[[], float] | None = None) -> None:
        self._say, self._clock = say, clock or time.perf_counter
        self._began = self._clock()
        self._next = self._began + EVERY

    def tell(self, what: str, *parts: object) -> None:
        """Say what is done now, unless something was said a short while ago."""
        now = self._clock()
        if now >= self._next:
            self._next = now + EVERY
            self._say(f"planning: {what} after %.1f s", *parts, now - self._began)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a search has to end.

    Attributes:
        at: on the clock, in seconds.
        clock: `time.perf_counter` if it is not given.
        progress: who is told how far the search is; nobody, if it is not given.
    """

    at: float
    clock: Callable[[], float] | None = None
    progress: Progress | None = None

    @classmethod
    def after(
        cls, seconds: float, *, clock: Callable[[], float] | None = None, progress: Progress | None = None
    ) -> Deadline:
        """So many seconds from now."""
        return cls(at=(clock or time.perf_counter)() + seconds, clock=clock, progress=progress)

    @property
    def left(self) -> float:
        """Seconds until then; 0 once it has passed."""
        return max(self.at - (self.clock or time.perf_counter)(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left <= 0.0

    def share(self, part: float) -> Deadline:
        """The deadline of something that may take this part of the time left."""
        return replace(self, at=(self.clock or time.perf_counter)() + part * self.left)

    def again(self, seconds: float) -> Deadline:
        """The deadline of what follows, so many seconds from now."""
        return replace(self, at=(self.clock or time.perf_counter)() + seconds)

    def first_of(self, found: Iterable[T]) -> Iterator[T]:
        """Yield the first of what is found, and what follows until time is up."""
        for each in found:
            yield each
            if self.passed:
                return

    def tell(self, what: str, *parts: object) -> None:
        """Say what is done now, see `Progress`."""
        if self.progress is not None:
            self.progress.tell(what, *parts)


NEVER = Deadline(at=math.inf, clock=lambda: 0.0)
"""For what is too fast to need a deadline."""
