"""A loss that nobody has told, which a training loop computes outside of the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from tests.toys.chains import Residual

ROWS, WIDTH, CLASSES = 512, 64, 2000
BATCH, TARGET = torch.randn(ROWS, WIDTH), torch.randint(CLASSES, (ROWS,))


def logits() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Residual(WIDTH, 8) for _ in range(6)), nn.Linear(WIDTH, CLASSES))


def step(model: nn.Module) -> None:
    out = model(BATCH)
    nn.functional.cross_entropy(out, TARGET).backward()
    del out
    model.zero_grad()


@pytest.mark.parametrize("inputs", [None, BATCH], ids=["in place", "inputs"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_step_with_a_cross_entropy_outside_stays_within_its_budget(inputs: Any, share: float) -> None:
    lowest = autockpt.solve(autockpt.profile(logits(), BATCH), "lowest")
    budget = int(lowest.peak_bytes + share * (lowest.plain_peak_bytes - lowest.peak_bytes))
    model = autockpt.apply(logits(), budget=budget, inputs=inputs)
    for _ in range(3):
        step(model)
    measured = autockpt.measure(lambda: step(model), device="cpu")
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.segments
    assert measured.peak_bytes - TARGET.nbytes <= budget


def test_the_peak_with_a_loss_that_was_not_told_is_that_with_a_cross_entropy() -> None:
    told = autockpt.profile(logits(), BATCH, loss=lambda out: nn.functional.cross_entropy(out, TARGET))
    untold = autockpt.profile(logits(), BATCH)
    peaks = [autockpt.solve(each, "lowest").plain_peak_bytes for each in (told, untold)]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)


def test_a_plan_is_verified_with_gradients_of_the_outputs_and_made_for_a_loss_of_them() -> None:
    model = logits()
    lowest = autockpt.solve(autockpt.profile(model, BATCH), "lowest")
    assert autockpt.verify(model, BATCH, budget=lowest.peak_bytes).exact
    with pytest.raises(autockpt.Infeasible):
        autockpt.verify(model, BATCH, budget=int(0.9 * lowest.peak_bytes))
