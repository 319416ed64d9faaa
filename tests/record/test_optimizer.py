"""The optimizer in the profile: what it holds and what its step needs, against a real step and its measured peak."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import autockpt
from autockpt import Profile, ProfilingError
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


def wide() -> tuple[nn.Module, torch.Tensor]:
    """A model whose parameters are much and whose activations are little: the optimizer's step is its peak."""
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 700, bias=False)), torch.randn(4, 16)


def deep() -> tuple[nn.Module, torch.Tensor]:
    """A model whose peak is in backward, whatever the optimizer."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(6))), torch.randn(512, 16)


@pytest.fixture(scope="module", params=[wide, deep])
def recorded(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor, Profile]:
    """A model, its batch and its profile without an optimizer."""
    torch.manual_seed(0)
    model, batch = request.param()
    return model, batch, autockpt.profile(model, batch)


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


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=_named)
def test_the_first_and_the_second_step_peak_as_predicted(
    kind: Callable[..., Optimizer], options: dict[str, Any], recorded: tuple[nn.Module, torch.Tensor, Profile]
) -> None:
    plain, batch, profile = recorded
    model = copy.deepcopy(plain)
    optimizer = kind(model.parameters(), **options)
    begun_bytes = state_bytes(optimizer)  # Adagrad makes its state when it is built
    told = []
    for _ in range(2):
        memory = optimizer_memory(choose_optimizers(optimizer, model), range(100), "cpu")
        static = msgspec.structs.replace(profile.static, optimizer_bytes=memory.state_bytes)
        changes = {"static": static, "optimizer": memory.source, "optimizer_step_bytes": memory.step_bytes}
        problem = find_candidates(msgspec.structs.replace(profile, **changes), menu_seconds=0.0).problem
        *levels, last = simulate(problem, ()).level_bytes
        held_bytes = state_bytes(optimizer)
        level_bytes = max(max(levels) - memory.state_bytes + held_bytes, last)  # the state grows in the step itself
        expected = level_bytes - (static.total_bytes - memory.state_bytes) - held_bytes
        assert measured_step(model, batch, optimizer) == pytest.approx(expected, rel=1e-3)
        assert state_bytes(optimizer) == memory.state_bytes
        told.append((memory.state_bytes, memory.step_bytes, last > max(levels)))
    assert told[0] == told[1] and state_bytes(optimizer) >= begun_bytes
