"""Models whose forward a library wraps after `apply`, as accelerate's mixed precision does in a Trainer."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, Segment

BATCH = torch.linspace(-1, 1, 256 * 32).reshape(256, 32)


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)))


def wrap(model: nn.Module) -> None:
    planned = model.forward
    model.__dict__["forward"] = functools.wraps(planned)(torch.autocast("cpu", torch.bfloat16)(planned))


def train(model: nn.Module, steps: int) -> list[Tensor]:
    """So many steps; returns what backward made in the last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(BATCH).float().square().mean().backward()
        optimizer.step()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def listeners() -> int:
    hooks: Any = vars(importlib.import_module("torch.optim.optimizer"))["_global_optimizer_post_hooks"]
    return len(hooks)


@pytest.mark.parametrize("steps", [0, 1, 2, 4], ids=["before a step", "recorded", "timed", "planned"])
def test_a_budget_is_taken_off_behind_a_wrapper(steps: int) -> None:
    before, plain, model = listeners(), stack(), autockpt.apply(stack(), "lowest")
    wrap(plain)
    wrap(model)
    wrapper = model.__dict__["forward"]
    train(plain, steps)
    train(model, steps)
    autockpt.remove(model)
    assert model.__dict__["forward"] is wrapper
    assert not any("forward" in part.__dict__ for part in list(model.modules())[1:])
    assert listeners() == before
    assert autockpt.plan_of(model) is None
    with pytest.raises(autockpt.NotApplicable, match="nothing is applied"):
        autockpt.report(model)
    assert all(map(torch.equal, train(plain, 4), train(model, 4)))
    assert autockpt.plan_of(model) is None and listeners() == before


@pytest.mark.parametrize("plan", [Plan(), Plan(segments=(Segment(calls=("2#0",)),))], ids=["the root alone", "a child"])
def test_a_plan_is_taken_off_behind_a_wrapper(plan: Plan) -> None:
    model = autockpt.apply(stack(), plan=plan)
    wrap(model)
    wrapper = model.__dict__["forward"]
    autockpt.remove(model)
    assert model.__dict__["forward"] is wrapper
    assert autockpt.plan_of(model) is None
    autockpt.apply(model, plan=plan)
    assert autockpt.plan_of(model) == plan
    autockpt.remove(model)
    assert model.__dict__["forward"] is wrapper


def test_a_report_behind_a_wrapper_is_that_of_the_budget() -> None:
    model = autockpt.apply(stack(), "lowest")
    wrap(model)
    assert autockpt.report(model).plan is None
    train(model, 5)
    report = autockpt.report(model)
    assert report.steps >= 2 and report.plan is not None and report.asked


def test_a_larger_batch_is_planned_where_parts_were_wrapped_since() -> None:
    def loop(model: nn.Module) -> list[Tensor]:
        for step in range(9):
            if step == 4:
                for part in model:  # type: ignore[attr-defined]
                    wrap(part)
            model.zero_grad()
            model(torch.cat([BATCH, BATCH]) if step > 4 else BATCH).float().square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain, model = stack(), autockpt.apply(stack(), "lowest")
    assert all(map(torch.equal, loop(plain), loop(model)))
    report = autockpt.report(model)
    assert len(report.plans) == 2, report.plans
    autockpt.remove(model)
    assert autockpt.plan_of(model) is None
    assert all(map(torch.equal, loop(plain), loop(model)))
