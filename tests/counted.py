"""Searches that are bounded by what they do, not by how long it takes: what a test finds depends on no clock.

look at the clock     a millisecond
HiGHS                 so many nodes, and a twentieth of a second however long they take
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from autockpt.solvers import deadline
from autockpt.solvers.programme import highs
from tests.doors import solving

__all__ = ["counted_time"]

LOOK_SECONDS, SOLVE_SECONDS = 1e-3, 0.05
MOST_NODES = 50
LONG_SECONDS = 3600.0


@contextmanager
def counted_time() -> Iterator[None]:
    """Let planning see a clock that only its own looks and solves move."""
    now = [0.0]
    honest: type[Any] = highs._solver()

    def look() -> float:
        now[0] += LOOK_SECONDS
        return now[0]

    class Counted(honest):  # type: ignore[misc]  # PuLP has no types
        def __init__(self, *given: Any, **options: Any) -> None:
            more = {"mip_max_nodes": MOST_NODES} if options["mip"] else {}
            super().__init__(*given, **{**options, "timeLimit": LONG_SECONDS}, **more)
            now[0] += SOLVE_SECONDS

    clocks = SimpleNamespace(perf_counter=look, thread_time=look)
    with (
        patch.object(deadline, "time", clocks),
        patch.object(solving, "time", clocks),
        patch.object(highs, "_solver", lambda: Counted),
    ):
        yield
