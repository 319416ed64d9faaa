"""What recomputing costs the host, measured on segments too small to cost anything else.

Between segments the caches are swept, as by a real model's operators: Python that ran a moment ago is several times
faster than Python that has to be fetched from memory again.
"""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from .._install import install, uninstall
from .._plan import Plan, Segment

__all__ = ["HostCosts", "host_costs"]

ROUNDS = 13
BLOCKS = 4
UNITS = 8
VIEWS = 24

LEAST_SECONDS = 1e-6
"""A Python call's: on a busy machine differences may come out as nothing."""

SWEPT_BYTES = 2**22
"""More than the caches that belong to one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Host seconds beside those of the operators, forward and backward together.

    Attributes:
        replay_seconds: of a replayed segment.
        kept_seconds: of a kept or skipped unit inside it.
        mode_seconds: of a torch function that a function mode sees.
    """

    replay_seconds: float = 0.0
    kept_seconds: float = 0.0
    mode_seconds: float = 0.0


@functools.cache
def host_costs() -> HostCosts:
    """Measure what recomputing costs this machine's host; once in a process."""
    model = _Model()
    batch = torch.ones(1, 1)
    calls = [f"blocks.{i}#0" for i in range(BLOCKS)]
    # What is kept: nothing, calls, functions. The first of a kind runs again, so that a replay has something to do.
    kept: dict[str, list[tuple[str, ...]]] = {
        "whole": [()] * BLOCKS,
        "calls": [tuple(f"blocks.{i}.parts.{unit}#0" for unit in range(1, UNITS)) for i in range(BLOCKS)],
        "functions": [tuple(f"{call}/sigmoid#{unit}" for unit in range(1, UNITS)) for call in calls],
    }
    plans = {
        "plain": Plan(),
        **{
            name: Plan(
                segments=tuple(Segment(calls=(call,), keep=keep) for call, keep in zip(calls, keeps, strict=True))
            )
            for name, keeps in kept.items()
        },
    }
    readings: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(ROUNDS):
        for name, plan in plans.items():
            install(model, plan)
            began = time.thread_time()  # not what else the machine does meanwhile
            torch.autograd.grad(model(batch).sum(), list(model.parameters()))
            readings[name].append(time.thread_time() - began)
            uninstall(model)

    def more(dear: str, cheap: str) -> float:
        """Seconds a block, the median of the rounds: the two ran one after the other."""
        pairs = zip(readings[dear], readings[cheap], strict=True)
        return statistics.median(a - b for a, b in pairs) / BLOCKS

    replay_seconds = max(more("whole", "plain"), 0.0)
    kept_seconds = max(more("calls", "whole") / (UNITS - 1), LEAST_SECONDS)
    # Functions as units cost what calls do, and the mode.
    mode_seconds = max(more("functions", "calls") / (UNITS + VIEWS), LEAST_SECONDS)
    return HostCosts(replay_seconds=replay_seconds, kept_seconds=kept_seconds, mode_seconds=mode_seconds)


class _Block(torch.nn.Module):
    """Calls that can be units, functions that can be, and views that a function mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Sigmoid() for _ in range(UNITS))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        for _ in range(UNITS):
            x = torch.sigmoid(x)
        for _ in range(VIEWS):
            x = x.view(1, 1)
        return x


class _Model(torch.nn.Module):
    """Blocks, with the caches swept before each in forward and in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(1, 1)
        self.blocks = torch.nn.ModuleList(_Block() for _ in range(BLOCKS))
        self._swept = torch.zeros(SWEPT_BYTES // 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            self._sweep()
            x = block(x)
            x.register_hook(self._sweep)
        return x

    def _sweep(self, gradient: Tensor | None = None) -> None:
        with torch.no_grad():
            self._swept.add_(1.0)
