"""What recomputing costs the host: seconds of a segment, a saved tensor or a unit that are not those of operators.

    beside   (recomputed step - plain step) - forward of what runs again
    save     (beside of a long segment - beside of a short one) / how many tensors more it saves
    replay   beside of the long one - its saves
    member   (beside of a segment of several calls - replay - their saves) / how many more they are than one
    kept     (step with more kept - step with less) + forward of it: of calls or functions the dearer
    mode     (step with one kept function - recomputed step) + forward of that function - kept

Forward is timed with what it saves packed and dropped. Parameters and tensors have some kilobytes, and after every call
and function the caches are swept, in forward and in backward, as by a real model's operators, and more of them between
blocks: Python that ran a moment ago is several times faster than Python that has to be fetched from memory again. Calls
sweep themselves, so that a replay of several of them finds the caches no warmer than one of their caller; of what a
replay hands out calls do not, as they run no operator, and functions do. The functions are dropouts:
looking at generators' states is a good part of what such a unit costs.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .._data.plan import Plan, Segment
from .._run.install import install, uninstall
from .._torch_private import storage_key
from .watch import no_backward

ROUNDS = 11
BLOCKS = 2
UNITS = 8
NORM = 3
"""A unit whose forward runs to its end before it has saved all, so that a replay which ends with it runs all of it."""

TOKENS, WIDTH = 16, 64

LEAST_SECONDS = 1e-6
"""A Python call's: on a busy machine differences may come out as nothing."""

SWEPT_BYTES = 2**23
"""Between two operators: more than the caches of one core hold. After the matrix product of a small model's block what
a frame does takes about as long as after so much."""

ALL_SWEPT_BYTES = 2**24
"""Between two blocks: a good part of the cache that cores share, as a step of a real model touches more from one
segment to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Host seconds beside those of the operators, forward and backward together.

    Attributes:
        replay_seconds: of a replayed segment.
        member_seconds: of each of its calls but the first.
        save_seconds: of each tensor that is saved in it, parameters left out, whether or not a replay does so again:
            what a unit keeps for backward is packed and handed back too.
        kept_seconds: of a kept or skipped unit inside it, beside what that saves.
        mode_seconds: of a call that a function mode watches, and again of each function and call inside it.
    """

    replay_seconds: float = 0.0
    member_seconds: float = 0.0
    save_seconds: float = 0.0
    kept_seconds: float = 0.0
    mode_seconds: float = 0.0


class Timed(NamedTuple):
    """Forward seconds, and how many tensors were saved."""

    seconds: float
    saves: int


@functools.cache
def host_costs() -> HostCosts:
    """Measure what recomputing costs this machine's host; once in a process."""
    model = _Model()
    batch = torch.ones(TOKENS, WIDTH)
    blocks = [f"blocks.{i}" for i in range(BLOCKS)]
    later = range(1, UNITS)  # the first of a kind runs again, so that a replay has something to do
    plans = {
        "plain": Plan(),
        "short": _plan(f"{block}.parts.{NORM}#0" for block in blocks),
        "long": _plan(f"{block}#0" for block in blocks),
        "several": Plan(segments=tuple(Segment(calls=_parts(block)) for block in blocks)),
        "calls": _plan((f"{block}#0" for block in blocks), [f"{{}}.parts.{unit}#0" for unit in later]),
        "function": _plan((f"{block}#0" for block in blocks), ["{}#0/dropout#1"]),
        "functions": _plan((f"{block}#0" for block in blocks), [f"{{}}#0/dropout#{i}" for i in later]),
    }
    steps: dict[str, list[float]] = {name: [] for name in plans}
    forwards: list[list[Timed]] = []
    for _ in range(ROUNDS):
        forwards.append(model.time_block(batch))
        for name, plan in plans.items():
            install(model, plan)
            steps[name].append(model.time_step(batch))
            uninstall(model)
    return costs_of(steps, forwards)


def costs_of(steps: Mapping[str, Sequence[float]], forwards: Sequence[Sequence[Timed]]) -> HostCosts:
    """Tell apart what steps under the plans of `host_costs` took.

    Args:
        steps: seconds of a step in each round, by plan.
        forwards: what a block's forward does, one after the other, in each round.

    Returns:
        The seconds, each at least `LEAST_SECONDS` but those of a segment.
    """

    def more(dear: str, cheap: str) -> float:
        """Seconds a block, the median of the rounds, in each of which both ran."""
        pairs = zip(steps[dear], steps[cheap], strict=True)
        return statistics.median(a - b for a, b in pairs) / BLOCKS

    each = [_median(timed) for timed in zip(*forwards, strict=True)]
    dropouts, calls = each[:UNITS], each[UNITS:]
    long, short = _total(each), calls[NORM]
    beside_long = more("long", "plain") - long.seconds
    beside_short = more("short", "plain") - short.seconds
    save_seconds = max((beside_long - beside_short) / (long.saves - short.saves), LEAST_SECONDS)
    replay_seconds = max(beside_long - long.saves * save_seconds, 0.0)
    several = _total(calls)
    beside_several = more("several", "plain") - several.seconds - several.saves * save_seconds

    def kept(dear: str, cheap: str, units: Sequence[Timed]) -> float:
        """Seconds of each of some kept units."""
        total = _total(units)
        return (more(dear, cheap) + total.seconds) / len(units)

    function_seconds = kept("functions", "function", dropouts[2:])
    watched_seconds = kept("function", "long", dropouts[1:2]) - function_seconds
    n_watched = 1 + 2 * len(each)  # the block, and what it does with the hook behind each
    return HostCosts(
        replay_seconds=replay_seconds,
        # On a busy machine it may come out as more than a segment of its own, of which it is a part.
        member_seconds=max(min((beside_several - replay_seconds) / (UNITS - 1), replay_seconds), LEAST_SECONDS),
        save_seconds=save_seconds,
        kept_seconds=max(kept("calls", "long", calls[1:]), function_seconds, LEAST_SECONDS),
        mode_seconds=max(watched_seconds / n_watched, LEAST_SECONDS),
    )


def _parts(block: str) -> tuple[str, ...]:
    """All calls of a block, of which the last runs to its end before it has saved all."""
    return tuple(f"{block}.parts.{unit}#0" for unit in range(UNITS))


def _plan(calls: Iterable[str], keep: Sequence[str] = ()) -> Plan:
    segments = []
    for call in calls:
        units = tuple(unit.format(call.removesuffix("#0")) for unit in keep)
        segments.append(Segment(calls=(call,), keep=units))
    return Plan(segments=tuple(segments))


def _median(timed: Sequence[Timed]) -> Timed:
    return Timed(statistics.median(each.seconds for each in timed), timed[0].saves)


def _total(timed: Sequence[Timed]) -> Timed:
    return Timed(sum(each.seconds for each in timed), sum(each.saves for each in timed))


class _Caches:
    """What else is in the caches than what recomputing needs."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._some, self._all = (np.zeros(size // 4, np.float32) for size in (SWEPT_BYTES, ALL_SWEPT_BYTES))

    def clock(self) -> float:
        """Seconds of this thread, not of what else the machine does meanwhile, and without those of the sweeps."""
        return time.thread_time() - self.seconds

    def sweep(self, gradient: Tensor | None = None) -> None:
        """Have other things in the caches of the core; add up the seconds that it takes."""
        self._have(self._some)

    def sweep_all(self, gradient: Tensor | None = None) -> None:
        """Have other things in a good part of the shared cache too."""
        self._have(self._all)

    def _have(self, content: npt.NDArray[np.float32]) -> None:
        began = time.thread_time()
        content += 1  # by numpy: no function mode sees it
        self.seconds += time.thread_time() - began


class _Part(nn.Module):
    """A call that leaves other things in the caches, as an operator of a real size does."""

    def __init__(self, part: nn.Module, caches: _Caches) -> None:
        super().__init__()
        self.part = part
        self._caches = caches

    def forward(self, x: Tensor) -> Tensor:
        x = self.part(x)
        self._caches.sweep()
        return x


class _Block(nn.Module):
    """Functions and calls that can be units; a function mode sees both, and the hooks between them."""

    def __init__(self, caches: _Caches) -> None:
        super().__init__()
        kinds: tuple[Callable[[], nn.Module], ...] = (_linear, nn.GELU, _linear, _norm)
        self.parts = nn.ModuleList(_Part(kinds[unit % len(kinds)](), caches) for unit in range(UNITS))
        self._caches = caches

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps():
            x = step(x)
            x.register_hook(self._caches.sweep)
        return x

    def steps(self) -> list[Callable[[Tensor], Tensor]]:
        """What forward does, one after the other; each leaves other things in the caches."""
        return [*(self._dropout,) * UNITS, *self.parts]

    def _dropout(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(x)
        self._caches.sweep()
        return x


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._caches = _Caches()
        self.first = _linear()
        self.blocks = nn.ModuleList(_Block(self._caches) for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            self._caches.sweep_all()
            x = block(x)
            x.register_hook(self._caches.sweep_all)
        return x

    def time_step(self, x: Tensor) -> float:
        """Time a step, but for what sweeps the caches."""
        began = self._caches.clock()
        torch.autograd.grad(self(x).sum(), list(self.parameters()))
        return self._caches.clock() - began

    def time_block(self, x: Tensor) -> list[Timed]:
        """Time each step of one block's forward."""
        x = self.first(x)
        timed, saved = [], []
        parameters = {storage_key(parameter) for parameter in self.parameters()}

        def packed(tensor: Tensor) -> None:
            stamp = self._caches.clock()  # as in a profile; no backward will ask for the tensor
            if storage_key(tensor) not in parameters:
                saved.append(stamp)

        with torch.autograd.graph.saved_tensors_hooks(packed, no_backward):
            self._caches.sweep()
            for step in cast("_Block", self.blocks[0]).steps():
                saved.clear()
                began = self._caches.clock()
                x = step(x)
                timed.append(Timed(self._caches.clock() - began, len(saved)))
        return timed


def _norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)
