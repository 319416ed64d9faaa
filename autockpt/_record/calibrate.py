"""What recomputing costs the host, measured on segments too small to cost anything else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .._install import install, uninstall
from .._plan import Plan, Segment

__all__ = ["HostCosts", "host_costs"]

STEPS = 30

LAYERS = 8
"""Each is a unit that can be kept."""

FUNCTIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Host seconds beside those of the operators.

    Attributes:
        replay_seconds: of a replayed segment.
        kept_seconds: of a kept or skipped unit inside it.
        mode_seconds: of a torch function that a function mode sees.
    """

    replay_seconds: float = 0.0
    kept_seconds: float = 0.0
    mode_seconds: float = 0.0


def host_costs() -> HostCosts:
    """Measure what recomputing costs this machine's host."""
    block = torch.nn.Sequential(torch.nn.Linear(1, 1), *(torch.nn.Sigmoid() for _ in range(LAYERS)))
    model = torch.nn.Sequential(block)
    batch = torch.ones(1, 1)

    def step() -> None:
        torch.autograd.grad(model(batch).sum(), list(model.parameters()))

    def recomputed(keep: tuple[str, ...]) -> float:
        install(model, Plan(segments=(Segment(calls=("0#0",), keep=keep),)))
        try:
            return _median_seconds(step, STEPS)
        finally:
            uninstall(model)

    step()
    plain = _median_seconds(step, STEPS)
    whole = recomputed(())
    # All but the last, whose result backward alone reads.
    kept = recomputed(tuple(f"0.{layer}#0" for layer in range(1, LAYERS)))
    return HostCosts(
        replay_seconds=max(whole - plain, 0.0),
        kept_seconds=max(kept - whole, 0.0) / (LAYERS - 1),
        mode_seconds=_mode_seconds(),
    )


def _mode_seconds() -> float:
    tensor = torch.ones(1)
    plain = _median_seconds(tensor.dim, FUNCTIONS)
    with _CallsThrough():
        return max(_median_seconds(tensor.dim, FUNCTIONS) - plain, 0.0)


class _CallsThrough(TorchFunctionMode):
    """Does what a function mode must do at least: look the function up, and call it."""

    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[Any, str] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._wanted.get(func)
        return func(*args, **(kwargs or {}))


def _median_seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
