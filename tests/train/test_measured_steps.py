"""Steps that `measure`, or a profiler of the user's own, is around: recorded under the one, told of under the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import autockpt

BATCH = torch.randn(256, 16)
KEPT_BYTES = 3 * 2**20
BUDGET_BYTES = 1_100_000 + KEPT_BYTES


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(6)))


def loop(model: nn.Module, kept_bytes: int = KEPT_BYTES) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        around = torch.empty(kept_bytes // 4)  # from before a recording begins within it to after it
        model(BATCH).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        del around

    return step


def test_steps_that_are_measured_from_the_first_on_are_recorded_and_planned(caplog: pytest.LogCaptureFixture) -> None:
    plain, (measured, alone) = stack(), (autockpt.apply(stack(), "lowest") for _ in range(2))
    step, other, plainly = (loop(each, 0) for each in (measured, alone, plain))
    for _ in range(5):
        autockpt.measure(step)
    for _ in range(5):
        other()
    for _ in range(5):
        plainly()
    plans = [autockpt.plan_of(each) for each in (measured, alone)]
    assert plans[0] is not None and plans[1] is not None
    assert plans[0].segments and plans[0].plain_peak_bytes == plans[1].plain_peak_bytes
    assert plans[0].peak_bytes == plans[1].peak_bytes
    for one, other_, third in zip(measured.parameters(), alone.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, third) and torch.equal(other_, third)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_measurement_sees_what_stood_before_a_recording_began_in_it() -> None:
    model = autockpt.apply(stack(), BUDGET_BYTES)
    step = loop(model)
    found = [autockpt.measure(step) for _ in range(5)]
    assert autockpt.plan_of(model) is not None
    for each in found:  # what was seen before a recording began in it, and after, counts
        assert each.step_bytes >= KEPT_BYTES
        assert abs(each.end_bytes - each.start_bytes) <= 2**16
    assert found[-1].peak_bytes == found[-2].peak_bytes


def test_a_measurement_of_several_steps_sees_all_of_them() -> None:
    """Recordings begin and end inside it."""
    model = autockpt.apply(stack(), BUDGET_BYTES)
    step = loop(model)

    def steps() -> None:
        for _ in range(4):
            step()
        torch.empty(4 * KEPT_BYTES // 4)

    assert autockpt.measure(steps).step_bytes >= 4 * KEPT_BYTES
    assert autockpt.plan_of(model) is not None
    again = autockpt.measure(step)
    assert KEPT_BYTES <= again.step_bytes < 2 * KEPT_BYTES


def test_an_error_in_a_measured_step_leaves_no_profiler_running() -> None:
    model = autockpt.apply(stack(), BUDGET_BYTES)

    def fails() -> None:
        model(BATCH).sum()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        autockpt.measure(fails)
    step = loop(model)
    for _ in range(4):
        step()
    assert autockpt.plan_of(model) is not None
    assert autockpt.measure(step).step_bytes >= KEPT_BYTES


def each_step(step: Callable[[], None]) -> None:
    for _ in range(6):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            step()


def older(step: Callable[[], None]) -> None:
    profiler: AbstractContextManager[Any] = torch.autograd.profiler.profile()
    with profiler:
        for _ in range(6):
            step()


@pytest.mark.parametrize(
    ("train", "named"), [(each_step, "torch.profiler.profile"), (older, "torch.autograd.profiler.profile")]
)
def test_a_profiler_that_keeps_steps_from_being_recorded_is_said_again_by_name(
    train: Callable[[Callable[[], None]], None], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = autockpt.apply(stack(), BUDGET_BYTES)
    step = loop(model)
    train(step)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2
    assert "is spilled and not recorded, a later one will be" in said[0]
    assert said[1].startswith("4 steps ran and none could be recorded, so there is still no plan")
    assert f": {named}, not of autockpt, runs around them" in said[1]
    assert autockpt.plan_of(model) is None
    for _ in range(3):
        step()
    assert autockpt.plan_of(model) is not None
