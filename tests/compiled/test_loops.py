"""Loops around compiled models: others that train beside them, and steps that no plan holds."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import autockpt
from tests.compiled.models import BATCH, Narrow, outside
from tests.doors import compiled_hold_of

pytestmark = pytest.mark.filterwarnings(
    # Dynamo reads it of what compiled code is given, in plain models too, and hides the warning where it is no error.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)


def barely_held(more_bytes: int) -> tuple[Any, int]:
    """Return a compiled model with a budget of so much more than its first step needs at least, and that budget."""
    torch.compiler.reset()
    compiled = outside(Narrow())
    autockpt.apply(compiled, "min", inputs=BATCH, seconds=0.1)
    lowest = autockpt.plan_of(compiled)
    assert lowest is not None
    autockpt.apply(compiled, lowest.peak_bytes + more_bytes, seconds=0.1)
    return compiled, lowest.peak_bytes + more_bytes


def together(models: list[Any], steps: int) -> None:
    """Train models in one loop, each with a backward of its own."""
    for _ in range(steps):
        for model in models:
            model.zero_grad()
            model(*BATCH).backward()


@pytest.mark.parametrize(("kinds", "steps"), [(("compiled", "compiled"), 2), (("compiled", "eager"), 4)])
def test_compiled_models_with_budgets_of_their_own_are_said_not_to_know_of_each_other(
    kinds: tuple[str, str], steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was held to its own, and nobody said that nothing holds the sum."""
    torch.compiler.reset()
    models = [outside(Narrow()) if kind == "compiled" else Narrow() for kind in kinds]
    for model in models:
        autockpt.apply(model, "1GB", seconds=0.1)
    together(models, steps)
    apart = [each.getMessage() for each in caplog.records if "train in one loop" in each.getMessage()]
    assert len(apart) == 2  # both are told, once
    assert all("Narrow (1.00 GB) and Narrow (1.00 GB)" in each and "add up to what is there" in each for each in apart)
    assert all("apply([one, other]" not in each for each in apart)  # it is refused for what is compiled


def test_compiled_models_that_train_one_after_the_other_are_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is one whose neighbour has no budget any more."""
    torch.compiler.reset()
    models = [autockpt.apply(outside(Narrow()), "1GB", seconds=0.1) for _ in range(2)]
    for model in models:
        together([model], 2)
    autockpt.remove(models[0])
    together(models, 2)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_what_stepped_before_a_model_moved_into_compiled_code_counts_there() -> None:
    """A step stood above its budget by the state of the optimizer, which had made it in the step without a plan."""
    torch.compiler.reset()
    model = autockpt.apply(Narrow(width=512), "1GB", seconds=0.1)
    compiled, optimizer = outside(model), torch.optim.AdamW(model.parameters(), foreach=False)
    stood = step_bytes = 0
    for _ in range(2):
        optimizer.zero_grad()
        stood = sum(each.nbytes for each in (*model.parameters(), *BATCH))
        stood += sum(each.nbytes for state in optimizer.state.values() for each in state.values())
        step_bytes = autockpt.measure(lambda: compiled(*BATCH).backward()).step_bytes
        optimizer.step()
    hold = compiled_hold_of(compiled)
    assert hold is not None and hold.plan is not None and hold.plan is autockpt.plan_of(model)
    assert stood + step_bytes <= hold.plan.peak_bytes
    autockpt.remove(model)
    assert compiled_hold_of(compiled) is None


def test_a_step_that_no_plan_holds_is_planned_once() -> None:
    """It was planned and compiled anew in each step, for the same lowest plan."""
    compiled, budget_bytes = barely_held(100)
    for _ in range(4):
        compiled(*BATCH).backward()  # from the second one on, the gradients of the first stand beside it
    hold = compiled_hold_of(compiled)
    assert hold is not None and len(hold.made) == 2
    assert hold.made[-1][0].peak_bytes > budget_bytes


def test_each_reason_why_a_budget_may_not_hold_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first one silenced all others."""
    compiled, _ = barely_held(0)
    for _ in range(3):
        waits = compiled(*BATCH)
        compiled(*BATCH).backward()
        waits.backward()
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(told) == 2
    assert "a forward ran while an earlier one still waits" in told[0] and "no plan holds this step" in told[1]
