"""`apply` from the outside: what a user does right, and what a user does wrong."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from autockpt import BudgetError, Infeasible, InvalidFile, NotApplicable, Plan, ProfilingError, UnknownSolver
from tests.end_to_end.reference import counting_replays, reference
from tests.zoo import GlueStack, build, total


def stack(blocks: int = 6) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(blocks)))


BATCH = torch.randn(256, 32)


def traces(model: nn.Module) -> dict[str, list[str]]:
    return {name: sorted(module.__dict__) for name, module in model.named_modules()}


def test_apply_profiles_solves_and_recomputes() -> None:
    model = stack()
    plain = autockpt.measure(lambda: model(BATCH).sum().backward(), device="cpu")
    model.zero_grad()
    profile = autockpt.profile(model, BATCH)
    budget = profile.static.total_bytes + plain.step_bytes * 7 // 10
    assert autockpt.apply(model, budget, inputs=BATCH) is model
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.segments and plan.budget_bytes == budget
    with counting_replays() as replays:
        step = autockpt.measure(lambda: model(BATCH).sum().backward(), device="cpu").step_bytes
    assert replays
    assert profile.static.total_bytes + step <= budget


def test_the_loss_that_is_given_is_the_loss_that_is_recorded() -> None:
    model = stack()
    profile = autockpt.profile(model, BATCH, loss=lambda out: out.square().mean())
    summed = autockpt.profile(model, BATCH, loss=torch.sum)
    assert len(profile.saves) == len(summed.saves) + 1  # square keeps its input


@pytest.mark.parametrize("budget", ["8 G B", "-1GB", "nan", "120%", "0", 0, -5, True, "", "GB", "inf"])
def test_a_budget_that_does_not_parse(budget: Any) -> None:
    model = stack()
    before = traces(model)
    with pytest.raises(BudgetError):
        autockpt.apply(model, budget, inputs=BATCH)
    assert traces(model) == before


def test_a_budget_below_the_minimum_says_the_minimum_and_what_dominates_it() -> None:
    model = stack()
    before = traces(model)
    with pytest.raises(Infeasible, match=r"(backward|forward) of") as caught:
        autockpt.apply(model, "100KB", inputs=BATCH)
    assert traces(model) == before
    assert caught.value.budget_bytes == 100_000
    autockpt.apply(model, caught.value.minimum_bytes, inputs=BATCH)
    assert autockpt.plan_of(model) is not None
    lowest = caught.value.plan
    assert lowest.peak_bytes == lowest.budget_bytes == caught.value.minimum_bytes < lowest.plain_peak_bytes
    assert autockpt.plan_of(autockpt.apply(model, plan=lowest)) == lowest


def test_neither_or_both_of_budget_and_plan() -> None:
    with pytest.raises(BudgetError, match="either"):
        autockpt.apply(stack(), inputs=BATCH)
    with pytest.raises(BudgetError, match="either"):
        autockpt.apply(stack(), "1GB", plan=Plan.of(["0"]), inputs=BATCH)


def test_a_model_without_trainable_parameters() -> None:
    with pytest.raises(NotApplicable, match="requires a gradient"):
        autockpt.apply(stack().requires_grad_(False), "1GB", inputs=BATCH)


def test_inputs_that_make_forward_raise_leave_the_model_as_it_was() -> None:
    model = stack()
    before = traces(model)
    with pytest.raises(RuntimeError, match="shape"):
        autockpt.apply(model, "1GB", inputs=torch.randn(4, 33))
    assert traces(model) == before
    assert autockpt.plan_of(model) is None


def test_a_plan_for_another_model_names_the_calls_that_are_missing() -> None:
    model = stack(2)
    before = traces(model)
    with pytest.raises(NotApplicable, match=r"encoder\.7"):
        autockpt.apply(model, plan=Plan.of(["0", "encoder.7"]))
    assert traces(model) == before


def test_a_call_that_stands_in_a_plan_twice() -> None:
    with pytest.raises(InvalidFile, match="twice"):
        Plan.of(["0", ["0", "1"]])


def test_a_solver_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(UnknownSolver, match=r"articulation.*auto.*ilp.*sqrt"):
        autockpt.apply(stack(), "1GB", inputs=BATCH, solver="simplex")


def test_an_unknown_mode_lists_those_that_exist() -> None:
    with pytest.raises(ProfilingError, match="there are measured and fake"):
        autockpt.profile(stack(), BATCH, mode="imaginary")  # type: ignore[arg-type]


def test_two_applies_in_a_row_replace_and_remove_without_apply_does_nothing() -> None:
    model = stack()
    before = traces(model)
    assert autockpt.remove(model) is model
    autockpt.apply(model, plan=Plan.of(["0", "1"]))
    autockpt.apply(model, plan=Plan.of([["2", "3"]]))
    plan = autockpt.plan_of(model)
    assert plan is not None and [segment.calls for segment in plan.segments] == [("2#0", "3#0")]
    autockpt.remove(model)
    assert autockpt.plan_of(model) is None
    assert traces(model) == before


def test_eval_and_no_grad_recompute_nothing() -> None:
    model = autockpt.apply(stack(), plan=Plan.of(["0", "1"]))
    with counting_replays() as replays:
        model.eval()
        with torch.no_grad():
            model(BATCH)
    assert replays == []


def test_an_exit_that_moves_from_step_to_step() -> None:
    plain = reference("glue")
    plan = autockpt.solve(plain.profile, plain.plain_peak_bytes * 6 // 10)
    model, twin = plain.case.model, copy.deepcopy(plain.case.model)
    autockpt.apply(model, plan=plan)
    try:
        for exit_after in (None, 3, 7, 1, None):
            gradients = []
            for one in (model, twin):
                torch.manual_seed(11)
                one.zero_grad()
                total(one(**plain.case.kwargs, exit_after=exit_after)).backward()
                gradients.append([p.grad for p in one.parameters() if p.grad is not None])
            assert len(gradients[0]) == len(gradients[1])
            assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    finally:
        autockpt.remove(model)
        model.zero_grad()


def test_a_model_with_checkpointing_of_its_own_keeps_it_and_the_plan_says_so() -> None:
    case = build("gpt2-hidden-states")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers renames it
        case.model.gradient_checkpointing_enable()  # type: ignore[operator]
    profile = autockpt.profile(case.model, case.kwargs)
    plan = autockpt.solve(profile, "1GB")
    assert any("checkpoint" in note for note in plan.notes)
    assert "checkpoint" in plan.explain()
    torch.manual_seed(0)
    case.forward()[1].backward()
    before = [p.grad.clone() for p in case.model.parameters() if p.grad is not None]
    case.model.zero_grad()
    autockpt.apply(case.model, plan=Plan.of(["transformer.h.1", ["transformer.h.2", "transformer.h.3"], "lm_head"]))
    torch.manual_seed(0)
    case.forward()[1].backward()
    after = [p.grad for p in case.model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_profile_survives_its_file(tmp_path: Any) -> None:
    profile = autockpt.profile(GlueStack(2), {"hidden": torch.randn(2, 4, 64), "mask": torch.ones(2, 4, 1)})
    profile.save(tmp_path / "profile.json")
    assert autockpt.Profile.load(tmp_path / "profile.json") == profile


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "not a valid"),
        (lambda text: text.replace("autockpt.profile/3", "autockpt.profile/7"), "schema"),
        (lambda text: text.replace('"model"', '"modle"', 1), "modle|model"),
        (lambda text: text.replace('"parameter_bytes":', '"parameter_bytes":-', 1), "parameter_bytes"),
        (lambda text: text.replace('"parent":0', '"parent":2', 1), "not a tree"),
        (lambda text: "[]", "not a valid"),
    ],
)
def test_a_profile_file_that_is_damaged(damage: Any, words: str, tmp_path: Any) -> None:
    path = tmp_path / "profile.json"
    autockpt.profile(stack(2), BATCH).save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(InvalidFile, match=words):
        autockpt.Profile.load(path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:-20], "not a valid"),
        (lambda text: text.replace("autockpt.plan/1", "autockpt.plan/2"), "schema"),
        (lambda text: text.replace('"solver"', '"sovler"', 1), "sovler"),
        (lambda text: text.replace('"1#0"', '"0#0"'), "twice"),
        (lambda text: text.replace('"1#0"', '"1"'), "calls"),
    ],
)
def test_a_plan_file_that_is_damaged(damage: Any, words: str, tmp_path: Any) -> None:
    path = tmp_path / "plan.json"
    Plan.of(["0", "1"]).save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(InvalidFile, match=words):
        Plan.load(path)
