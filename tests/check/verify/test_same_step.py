"""What `verify` predicts and what it measures is of the same step, and as the steps that the plan is for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import autockpt
from tests.rows import daily
from tests.zoo import DAILY, build

MOST_OFF = 0.005
"""Of the peak that is measured."""


def stack(width: int = 64) -> nn.Sequential:
    blocks = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(8))
    return nn.Sequential(*blocks)


def held_to(
    model: nn.Module,
    batch: torch.Tensor,
    budget: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    adds: bool = False,
    holds: bool = False,
) -> autockpt.Verification:
    """Train a model until there is a plan, and verify that."""
    autockpt.apply(model, budget)

    def step() -> None:
        if optimizer is not None:
            optimizer.zero_grad()
        elif not adds:
            model.zero_grad()
        outputs = model(batch)
        loss = outputs.square().mean()
        if not holds:
            del outputs
        loss.backward()
        if optimizer is not None:
            optimizer.step()

    for _ in range(4):
        step()
    assert autockpt.plan_of(model) is not None
    return autockpt.verify(model, batch)


def close(found: autockpt.Verification) -> bool:
    pairs = (
        (found.predicted_peak_bytes, found.measured_peak_bytes),
        (found.predicted_plain_peak_bytes, found.measured_plain_peak_bytes),
    )
    return all(one and other and abs(one - other) <= MOST_OFF * other for one, other in pairs)


def test_the_example_of_the_readme_raises_no_alarm() -> None:
    """Its loop begins without gradients and lets go of outputs, and its loss is none that anybody told."""
    found = held_to(stack(256), torch.randn(2048, 256), "24MB")
    assert found.exact and close(found)
    assert (found.measured_peak_bytes or 0) <= (found.budget_bytes or 0)
    assert "above" not in found.explain()
    # The sum of outputs saves nothing; whether the planned peak shows it depends on what was chosen.
    assert (found.planned_plain_peak_bytes or 0) > (found.predicted_plain_peak_bytes or 0)
    assert "predicted peak, the plan's own step" in found.explain()


@pytest.mark.parametrize("loop", [{}, {"holds": True}, {"adds": True}, {"adds": True, "holds": True}], ids=str)
def test_a_step_is_begun_as_those_of_the_loop(loop: Any) -> None:
    """With the loop's own loss it is the loop's own step, to the byte."""
    model, batch = stack(), torch.randn(512, 64)
    held_to(model, batch, "1.6MiB", **loop)
    gradients = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    found = autockpt.verify(model, batch, loss=lambda outputs: outputs.square().mean())
    assert found.exact and close(found)
    assert found.predicted_peak_bytes == found.planned_peak_bytes
    assert "above" not in found.explain() and "own step" not in found.explain()
    after: Any = [each.grad for each in model.parameters()]
    pairs = zip(gradients, after, strict=True)
    assert all(one is other is None or (one is not None and torch.equal(one, other)) for one, other in pairs)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_the_state_of_the_optimizer_counts_in_both(make: Any) -> None:
    model, batch = stack(), torch.randn(512, 64)
    found = held_to(model, batch, "1.8MiB", optimizer=make(model.parameters(), lr=1e-3))
    state_bytes = 2 * sum(each.nbytes for each in model.parameters()) if make is torch.optim.AdamW else 0
    assert state_bytes <= found.optimizer_bytes <= 1.02 * state_bytes
    assert found.exact and close(found)
    assert "above" not in found.explain()
    said = "of an optimizer's state, without its step" if state_bytes else "without an optimizer"
    assert said in found.explain()
    given = autockpt.verify(stack(), batch, budget="1.8MiB", optimizer="adamw", loss=torch.sum)
    assert close(given) and given.optimizer_bytes >= 2 * sum(each.nbytes for each in model.parameters())


@pytest.mark.parametrize("name", daily(["glue", "resnet50", "unet", "gpt2-cache"], DAILY))
def test_models_of_the_zoo_at_60_percent(name: str) -> None:
    case = build(name, short=True)
    plain_bytes = autockpt.profile(case.model, case.kwargs).plain_peak_bytes
    autockpt.apply(case.model, int(0.6 * plain_bytes), seconds=1.0)
    for _ in range(4):
        case.step()
    found = autockpt.verify(case.model, case.kwargs)
    assert found.exact and close(found)
    assert "above" not in found.explain()


def test_what_stands_above_its_prediction_is_said() -> None:
    model, batch = stack(), torch.randn(512, 64)
    found = autockpt.verify(model, batch, budget="1.5MiB", loss=torch.sum)
    higher = msgspec.structs.replace(found, measured_peak_bytes=int(1.02 * (found.predicted_peak_bytes or 0)))
    assert "above what is predicted of the very step" in higher.explain()
    assert "above what is predicted" not in found.explain()
