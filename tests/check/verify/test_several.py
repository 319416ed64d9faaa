"""Several models that have one plan, verified on what a loop does with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import NotApplicable, Plan, plan_of, verify
from tests.check.verify.models import BATCH, chain, counting
from tests.loops.models import Network, loss_of
from tests.loops.test_several import Unet, fine_tuning, preference
from tests.loops.twin import steps

torch.set_num_threads(1)


def pair() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"encoder": Network(4), "unet": Unet(4)}


def adamw(models: dict[str, nn.Module]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for model in models.values() for each in model.parameters()])


def trained(models: dict[str, nn.Module], budget: str, optimizer: torch.optim.Optimizer | None = None) -> Any:
    optimizer = optimizer or adamw(models)
    autockpt.apply(models, budget)
    for batch in steps(4):
        fine_tuning(models, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return models


def test_several_models_under_one_plan_are_verified() -> None:
    """It was refused."""
    models = pair()
    optimizer = adamw(models)
    plan = plan_of(trained(models, "7MB", optimizer))
    before = [each.clone() for model in models.values() for each in model.state_dict().values()]
    found = verify(models, steps(1)[0], step=partial(fine_tuning, models), steps=2)
    assert found.exact and plan is not None and found.replays == 2 * len(plan.segments) > 0, str(found)
    assert found.model == "Network + Unet" and found.compared["gradient"] == 2 * 58
    assert found.measured_peak_bytes is not None
    assert found.measured_peak_bytes <= 7_000_000 < (found.measured_plain_peak_bytes or 0)
    assert found.predicted_peak_bytes == pytest.approx(found.measured_peak_bytes, rel=0.001)
    assert plan_of(models) is plan
    assert found.optimizer_bytes == sum(each.nbytes for own in optimizer.state.values() for each in own.values())
    after = [each for model in models.values() for each in model.state_dict().values()]
    assert all(map(torch.equal, before, after))


def test_they_go_by_the_names_of_their_plan_however_they_are_given() -> None:
    models = trained(pair(), "7MB")
    plan = plan_of(models)
    found = verify([models["unet"], models["encoder"]], steps(1)[0], step=partial(fine_tuning, models))
    assert found.exact and plan_of(models) is plan
    fine_tuning(models, steps(1)[0]).backward()  # the same plan is on them
    assert plan_of([models["unet"], models["encoder"]]) is plan


def test_a_model_that_is_called_twice_in_a_step() -> None:
    models = {"policy": Network(4), "reference": Network(4).requires_grad_(False)}
    found = verify(models, steps(1)[0], step=partial(preference, models), budget="lowest")
    assert found.exact and found.replays >= found.segments > 2, str(found)
    assert found.predicted_peak_bytes == pytest.approx(found.planned_peak_bytes, rel=0.001)
    assert found.measured_peak_bytes == pytest.approx(found.planned_peak_bytes, rel=0.001)


def test_what_the_loop_computes_between_them_is_in_no_plan() -> None:
    """Nor are the models as a whole: `apply` could not have them recomputed."""
    models = [nn.Linear(32, 64), nn.Linear(64, 8)]

    def step(batch: Tensor) -> Tensor:
        return loss_of(models[1](models[0](batch).sigmoid().tanh().sigmoid()))

    found = verify(models, steps(1)[0], step=step, budget="lowest")
    assert (found.verdict, found.segments) == ("nothing recomputed", 0)


def test_the_call_that_differs_is_named_by_its_model() -> None:
    first, second = chain(None, None), chain(counting, None)
    plan = Plan.of(["first.0", "second.0"])
    found = verify(
        {"first": first, "second": second},
        BATCH,
        step=lambda batch: second(first(batch)).square().mean(),
        plan=plan,
    )
    assert found.verdict == "different"
    assert found.wrong_replays[0].name == "second.0#0"


def test_inputs_reach_the_step_as_they_reach_a_model() -> None:
    models = {"first": chain(None), "second": chain(None)}

    def step(batch: Tensor, *, scale: float) -> Tensor:
        loss: Tensor = (scale * models["second"](models["first"](batch))).square().mean()
        return loss

    found = verify(models, {"batch": BATCH, "scale": 2.0}, step=step, plan=Plan.of(["first.0", "second.0"]))
    assert found.exact and found.replays == 2


ONE: Callable[[], Any] = lambda: chain(None)  # noqa: E731
TWO: Callable[[], Any] = lambda: [chain(None), chain(None)]  # noqa: E731


@pytest.mark.parametrize(
    ("models", "given", "match"),
    [
        (TWO, {}, "what a loop does with them is not known"),
        (TWO, {"loss": torch.sum, "step": torch.sum}, "Give step= alone"),
        (TWO, {"step": 3}, "step is 3"),
        (ONE, {"step": torch.sum}, "and one was given"),
    ],
)
def test_what_makes_no_sense(models: Callable[[], Any], given: dict[str, Any], match: str) -> None:
    with pytest.raises(NotApplicable, match=match):
        verify(models(), BATCH, plan=Plan.of(["0.0"]), **given)


def test_one_of_several_is_not_verified_alone() -> None:
    models = trained(pair(), "7MB")
    with pytest.raises(NotApplicable, match="together with"):
        verify(models["encoder"], steps(1)[0])
    with pytest.raises(NotApplicable, match="together with"):
        verify([models["encoder"]], steps(1)[0], step=partial(fine_tuning, models))
    assert plan_of(models) is not None
