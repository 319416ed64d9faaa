"""One training step: what is predicted of it, what is measured, and how long it takes beside the plain one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import autockpt
from autockpt import Infeasible, Plan, Profile
from benchmarks.gpu.memory import synchronize
from benchmarks.gpu.models import Size, build

__all__ = [
    "DETERMINISTIC",
    "Setting",
    "Step",
    "Subject",
    "deterministic",
    "loss_of",
    "pairs",
    "peak",
    "plan_within",
    "planned",
    "record",
    "seconds_of",
    "subject",
    "verdict",
]

Step = Callable[..., None]
"""Runs a step; takes `optimize`."""

PLENTY = 2**60
"""More bytes than any step needs: the plan for it is the plain step."""


STEPS_A_TURN = 3
"""How many steps of one kind are timed before those of the other."""

DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""What the environment of a process must say before cuBLAS is first used, for `deterministic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a stage runs.

    Attributes:
        device: where.
        size: of the models.
        pairs: how many turns of steps are timed; see `pairs`.
        search_seconds: how long a solver may search.
    """

    device: torch.device
    size: Size
    pairs: int
    search_seconds: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model that trains.

    Attributes:
        model: the model, on the device.
        batch: its batch, by keyword.
        optimizer: AdamW over its parameters.
        device: where.
    """

    model: nn.Module
    batch: dict[str, torch.Tensor]
    optimizer: torch.optim.Optimizer
    device: torch.device

    def step(self, model: Callable[..., Any] | None = None, *, optimize: bool = True) -> None:
        """Run forward, backward and optimizer, from no gradients to no gradients.

        Args:
            model: stands in for the model.
            optimize: whether the optimizer steps; the seconds of a profile are those of a step in which it does not.
        """
        outputs = (self.model if model is None else model)(**self.batch)
        loss_of(outputs).backward()
        del outputs
        if optimize:
            self.optimizer.step()
        self.optimizer.zero_grad()


def subject(name: str, setting: Setting, *, times: int = 1, fused: bool | None = None) -> Subject:
    """Build a model, and take one step, after which the optimizer has its state and libraries their workspaces.

    Args:
        name: of the model.
        setting: how the stage runs.
        times: how many times as large as usual its batch is.
        fused: whether AdamW is fused; None leaves it to torch, which is not.
    """
    model, batch = build(name, setting.size, setting.device, times=times)
    found = Subject(
        model=model,
        batch=batch,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused or None),
        device=setting.device,
    )
    found.step()
    return found


def loss_of(outputs: Any) -> torch.Tensor:
    """Return a model's own loss, or the mean square of what it returns."""
    loss: torch.Tensor | None = getattr(outputs, "loss", None)
    return outputs.square().mean() if loss is None else loss


def record(of: Subject) -> tuple[Profile, Plan, float]:
    """Return the profile of a step, what it says of the plain step, and how many seconds recording took."""
    began = time.perf_counter()
    profile = autockpt.profile(  # the step keeps the loss alone
        of.model, of.batch, loss=loss_of, optimizer=of.optimizer, holds_outputs=False
    )
    seconds = time.perf_counter() - began
    return profile, autockpt.solve(profile, PLENTY), seconds


def plan_within(profile: Profile, budget_bytes: int, setting: Setting) -> tuple[Plan, bool]:
    """Return the plan for a budget, or the one of the lowest peak, and whether it keeps to the budget."""
    try:
        return autockpt.solve(profile, budget_bytes, seconds=setting.search_seconds), True
    except Infeasible as error:
        if error.plan is None:
            raise
        return error.plan, False


def peak(of: Subject, profile: Profile, step: Step | None = None) -> dict[str, int]:
    """Run a step, its own or another; return the peak of what is the model's, and what was alive besides."""
    found = autockpt.measure(step or of.step, device=of.device)
    other_bytes = found.start_bytes - profile.static.total_bytes
    return {"peak_bytes": found.peak_bytes - other_bytes, "other_bytes": other_bytes}


@contextmanager
def planned(of: Subject, plan: Plan) -> Iterator[Step]:
    """Train under a plan until the context ends; gives the step."""
    autockpt.apply(of.model, plan=plan)
    try:
        yield of.step
    finally:
        autockpt.remove(of.model)


def pairs(of: Subject, way: Callable[[], AbstractContextManager[Step]], count: int) -> dict[str, float | int]:
    """Time plain steps and those of a way to train in turns, without optimizer.

    Each turn of either begins with a step that is not timed: the first planned step compares every replay.

    Args:
        of: the model.
        way: how it trains, in a context.
        count: of turns, of `STEPS_A_TURN` timed steps each.

    Returns:
        Medians of both in seconds, and of the ratios of neighbours, less one.
    """
    plain, other = [], []
    for _ in range(count):
        plain += _turn(of.step, of.device)
        with way() as step:
            other += _turn(step, of.device)
    ratios = [b / a for a, b in zip(plain, other, strict=True)]
    return {
        "plain_seconds": statistics.median(plain),
        "step_seconds": statistics.median(other),
        "overhead": statistics.median(ratios) - 1,
        "pairs": len(ratios),
    }


def _turn(step: Step, device: torch.device) -> list[float]:
    step(optimize=False)
    return [seconds_of(step, device) for _ in range(STEPS_A_TURN)]


def seconds_of(step: Step, device: torch.device) -> float:
    """Time one step without optimizer, from an idle device to an idle device."""
    synchronize(device)
    began = time.perf_counter()
    step(optimize=False)
    synchronize(device)
    return time.perf_counter() - began


def verdict(of: Subject, plan: Plan) -> dict[str, str]:
    """Hold the planned step against the plain one bit for bit; where the plain one does not repeat, again with kernels
    that do."""
    found = autockpt.verify(of.model, of.batch, plan=plan, loss=loss_of)
    said = {"verdict": found.verdict, "first_difference": _named(found)}
    if found.verdict != "not repeatable":
        return said
    try:
        with deterministic():
            again = autockpt.verify(of.model, of.batch, plan=plan, loss=loss_of)
    except RuntimeError as error:  # there is no such kernel
        return {**said, "deterministic kernels": " ".join(str(error).split())[:200]}
    return {**said, "verdict": again.verdict, "verdict_by_default": found.verdict, "first_difference": _named(again)}


@contextmanager
def deterministic() -> Iterator[None]:
    """Have torch take kernels that repeat themselves; an operator that has none raises.

    Where torch only warns of those, attention keeps the one that does not repeat itself.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fills, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _named(found: autockpt.Verification) -> str:
    if found.error:
        return found.error[:200]
    first = next(iter(found.wrong_replays), found.first)
    return f"{first.kind} {first.name}" if first else ""
