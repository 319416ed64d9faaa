"""The optimizer in the profile: what it holds and what its step needs, against a real step and its measured peak."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import autockpt
from autockpt import ProfilingError
from autockpt._candidates import find_candidates
from autockpt._record.optimizer import choose_optimizers, optimizer_memory, optimizers_of
from autockpt.solvers import simulate

CASES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"weight_decay": 0.1}),
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.RMSprop, {"centered": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.Adafactor, {}),
]
VARIANTS = [(kind, {**options, "foreach": foreach}) for kind, options in CASES for foreach in (False, True)]
VARIANTS += [(kind, {"fused": True}) for kind in (torch.optim.SGD, torch.optim.AdamW)]


def _named(case: object) -> str | None:
    if isinstance(case, type):
        return case.__name__
    return "-".join(f"{key}={value}" for key, value in case.items()) if isinstance(case, dict) else None


@pytest.fixture(autouse=True, scope="module")
def nothing_older() -> Iterator[None]:
    """Keep what was there before these tests out of the many measurements, which look through all that there is."""
    gc.freeze()
    yield
    gc.unfreeze()


def wide() -> tuple[nn.Module, torch.Tensor]:
    """A model whose parameters are much and whose activations are little: the optimizer's step is its peak."""
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 700, bias=False)), torch.randn(4, 16)


def deep() -> tuple[nn.Module, torch.Tensor]:
    """A model whose peak is in backward, whatever the optimizer."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(6))), torch.randn(512, 16)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A model, its batch, and the levels of a step on it, that of an optimizer without memory the last."""

    model: nn.Module
    batch: torch.Tensor
    static_bytes: int
    level_bytes: tuple[int, ...]


@functools.cache
def record(build: Callable[[], tuple[nn.Module, torch.Tensor]]) -> Recorded:
    torch.manual_seed(0)
    model, batch = build()
    profile = autockpt.profile(model, batch, optimizer=torch.optim.SGD(model.parameters(), foreach=False))
    levels = simulate(find_candidates(profile, menu_seconds=0.0).problem, ()).level_bytes
    return Recorded(model, batch, profile.static.total_bytes, tuple(levels))


def state_bytes(optimizer: Optimizer) -> int:
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if isinstance(tensor, torch.Tensor))


def measured_step(model: nn.Module, batch: torch.Tensor, optimizer: Optimizer) -> int:
    """How far a training step, from no gradients on, stands above what was there before."""

    def step() -> None:
        outputs = model(batch)
        loss = outputs.sum()
        loss.backward()
        optimizer.step()

    measured = autockpt.measure(step, device="cpu").step_bytes
    optimizer.zero_grad()
    return measured


def assert_steps_as_predicted(recorded: Recorded, optimizer: Optimizer) -> bool:
    """Hold the first two steps against the predicted peak and state; whether the optimizer's step is the peak."""
    model = recorded.model
    predicted = None
    for _ in range(2):
        memory = optimizer_memory(choose_optimizers(optimizer, model), range(100), "cpu")
        *before, after = recorded.level_bytes
        held_bytes = state_bytes(optimizer)  # what is missing of it grows in the optimizer's step
        peak_bytes = max(max(before) + held_bytes, after + memory.state_bytes + memory.step_bytes)
        measured_bytes = measured_step(model, recorded.batch, optimizer)
        assert measured_bytes == pytest.approx(peak_bytes - recorded.static_bytes - held_bytes, rel=1e-3)
        assert state_bytes(optimizer) == memory.state_bytes
        assert predicted in (None, (memory.state_bytes, memory.step_bytes))
        predicted = memory.state_bytes, memory.step_bytes
    return after + memory.step_bytes > max(before)


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=_named)
def test_a_step_that_peaks_in_the_optimizer_peaks_as_predicted(
    kind: Callable[..., Optimizer], options: dict[str, Any]
) -> None:
    recorded = record(wide)
    assert_steps_as_predicted(recorded, kind(recorded.model.parameters(), **options))


@pytest.mark.parametrize(("kind", "options"), CASES[1::3], ids=_named)
def test_a_step_that_peaks_in_backward_peaks_as_predicted(
    kind: Callable[..., Optimizer], options: dict[str, Any]
) -> None:
    recorded = record(deep)
    assert not assert_steps_as_predicted(recorded, kind(recorded.model.parameters(), **options))
