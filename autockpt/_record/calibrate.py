"""What recomputing costs the host: seconds of a segment or unit that are not those of operators.

    replay   (recomputed step - plain step) - forward of what runs again
    kept     (step with more kept - step with less) + forward of what is kept: of calls or functions the dearer
    mode     (step with one kept function - recomputed step) + forward of that function - kept

Forward is timed as a profile times it: with what it saves packed and dropped. Blocks have parameters and tensors of
some kilobytes, and between them the caches are swept, as by a real model's operators: Python that ran a moment ago is
several times faster than Python that has to be fetched from memory again.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from .._install import install, uninstall
from .._plan import Plan, Segment
from .watch import no_backward

__all__ = ["HostCosts", "host_costs"]

ROUNDS = 9
BLOCKS = 4
UNITS = 8
VIEWS = 8
TOKENS, WIDTH = 256, 64

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
        mode_seconds: of a call that a function mode watches, and again of each function and call inside it.
    """

    replay_seconds: float = 0.0
    kept_seconds: float = 0.0
    mode_seconds: float = 0.0


@functools.cache
def host_costs() -> HostCosts:
    """Measure what recomputing costs this machine's host; once in a process."""
    model = _Model()
    batch = torch.ones(TOKENS, WIDTH)
    calls = [f"blocks.{i}#0" for i in range(BLOCKS)]
    # The first of a kind runs again, so that a replay has something to do.
    kept: dict[str, list[tuple[str, ...]]] = {
        "nothing": [()] * BLOCKS,
        "calls": [tuple(f"blocks.{i}.parts.{unit}#0" for unit in range(1, UNITS)) for i in range(BLOCKS)],
        "function": [(f"{call}/sigmoid#1",) for call in calls],
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
    steps: dict[str, list[float]] = {name: [] for name in plans}
    forwards: list[_Forward] = []
    for _ in range(ROUNDS):
        forwards.append(model.time_block(batch))
        for name, plan in plans.items():
            install(model, plan)
            began = time.thread_time()  # not what else the machine does meanwhile
            torch.autograd.grad(model(batch).sum(), list(model.parameters()))
            steps[name].append(time.thread_time() - began)
            uninstall(model)

    def more(dear: str, cheap: str) -> float:
        """Seconds a block, the median of the rounds: the two ran one after the other."""
        pairs = zip(steps[dear], steps[cheap], strict=True)
        return statistics.median(a - b for a, b in pairs) / BLOCKS

    forward = _Forward(*map(statistics.median, zip(*forwards, strict=True)))
    replay_seconds = more("nothing", "plain") - sum(forward)
    call_seconds = more("calls", "nothing") / (UNITS - 1) + forward.calls / UNITS
    function_seconds = more("functions", "function") / (UNITS - 2) + forward.functions / UNITS
    watched_seconds = more("function", "nothing") + forward.functions / UNITS - function_seconds
    return HostCosts(
        replay_seconds=max(replay_seconds, 0.0),
        kept_seconds=max(call_seconds, function_seconds, LEAST_SECONDS),
        mode_seconds=max(watched_seconds / (1 + 2 * UNITS + VIEWS), LEAST_SECONDS),
    )


class _Forward(NamedTuple):
    """Forward seconds of the parts of a block."""

    calls: float
    functions: float
    views: float


class _Block(nn.Module):
    """Calls that can be units, functions that can be, and views that a function mode sees."""

    def __init__(self) -> None:
        super().__init__()
        kinds: tuple[Callable[[], nn.Module], ...] = (_norm, _linear, nn.GELU, _linear)
        self.parts = nn.ModuleList(kinds[unit % len(kinds)]() for unit in range(UNITS))

    def forward(self, x: Tensor) -> Tensor:
        return self.views(self.functions(self.calls(x)))

    def calls(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def functions(self, x: Tensor) -> Tensor:
        for _ in range(UNITS):
            x = torch.sigmoid(x)
        return x

    def views(self, x: Tensor) -> Tensor:
        for _ in range(VIEWS):
            x = x.view(TOKENS, WIDTH)
        return x


class _Model(nn.Module):
    """Blocks, with the caches swept before each in forward and in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = _linear()
        self.blocks = nn.ModuleList(_Block() for _ in range(BLOCKS))
        self._swept = torch.zeros(SWEPT_BYTES // 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            self._sweep()
            x = block(x)
            x.register_hook(self._sweep)
        return x

    def time_block(self, x: Tensor) -> _Forward:
        """Time the parts of one block's forward."""
        block, x = cast("_Block", self.blocks[0]), self.first(x)
        self._sweep()
        stamps = [time.thread_time()]
        with torch.autograd.graph.saved_tensors_hooks(_dropped, no_backward):
            for part in (block.calls, block.functions, block.views):
                x = part(x)
                stamps.append(time.thread_time())
        return _Forward(*(end - begin for begin, end in itertools.pairwise(stamps)))

    def _sweep(self, gradient: Tensor | None = None) -> None:
        with torch.no_grad():
            self._swept.add_(1.0)


def _norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def _dropped(tensor: Tensor) -> None:
    """Pack a saved tensor that no backward will ask for."""
    time.thread_time()  # a profile's stamp
