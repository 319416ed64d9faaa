"""Batches that change, gradients that are there already, optimizers that come, and what no plan holds."""

from __future__ import annotations

import functools
import logging
import random
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from autockpt import BudgetError, Infeasible, Plan
from tests.doors import governor_of, refusing
from tests.toys.told import Told
from tests.train.loops import Loop, inside, language_model, tokens_of


def plan_of(loop: Loop) -> Plan:
    plan = autockpt.plan_of(loop.model)
    assert plan is not None
    return plan


def plain_peak(batch: Any, forward: Any = inside, *, layers: int = 6, **options: Any) -> int:
    loop = Loop(language_model(layers), forward, **options)
    loop.losses([batch])
    return loop.peak_bytes(batch)


def decision(loop: Loop) -> str:
    """What was decided as the last step began."""
    governor: Any = governor_of(loop.model)
    what: str = governor._step.decision.what
    return what


@pytest.mark.sweep
def test_fifty_random_lengths_never_exceed_the_budget_and_make_few_plans() -> None:
    lengths = random.Random(0).choices(range(16, 257), k=50)
    budget = round(0.7 * plain_peak(tokens_of(4, 256), layers=3))
    loop = Loop(autockpt.apply(language_model(3), budget), inside)
    twin = Loop(language_model(3), inside)
    plans: list[Plan] = []
    spilled = 0
    for number, length in enumerate(lengths):
        batch = tokens_of(4, length, number)
        expected = twin.losses([batch])
        assert loop.losses([batch]) == expected
        if decision(loop) in ("Record", "Time"):
            spilled += 1
        elif plan_of(loop) not in plans:
            plans.append(plan_of(loop))
            torch.manual_seed(number)
            assert loop.peak_bytes(batch) <= budget
            torch.manual_seed(number)
            twin.step(batch)
    assert len(plans) <= 6 and spilled <= 8
    assert plans[-1].segments


def test_a_smaller_batch_keeps_the_plan_and_a_larger_one_is_recorded_and_planned_with_headroom() -> None:
    budget = round(0.7 * plain_peak(tokens_of(4, 128)))
    loop = Loop(autockpt.apply(language_model(), budget), inside)
    loop.losses([tokens_of(4, 96)] * 3)
    first = plan_of(loop)
    loop.losses([tokens_of(4, 64), tokens_of(2, 96)])
    assert plan_of(loop) is first
    loop.losses([tokens_of(4, 120)])
    assert decision(loop) == "Record"
    loop.losses([tokens_of(4, 120)])
    assert decision(loop) == "Replan"
    second = plan_of(loop)
    assert (first.gap, second.gap) == (None, None)  # training does not wait for a bound
    loop.losses([tokens_of(4, 128)])
    assert decision(loop) == "Keep"
    assert loop.peak_bytes(tokens_of(4, 128)) <= budget


def test_the_largest_shapes_can_be_told_before_they_come() -> None:
    budget = round(0.7 * plain_peak(tokens_of(4, 128)))
    shapes = {"input_ids": (4, 128), "labels": (4, 128)}
    loop = Loop(autockpt.apply(language_model(), budget, plan_for=shapes), inside)
    loop.losses([tokens_of(2, 32)] * 3)
    first = plan_of(loop)
    assert first.segments
    assert loop.peak_bytes(tokens_of(4, 128)) <= budget
    assert plan_of(loop) is first


def test_a_batch_that_grows_at_every_step_ends_with_a_plan_that_has_headroom() -> None:
    budget = round(0.7 * plain_peak(tokens_of(4, 160)))
    loop = Loop(autockpt.apply(language_model(), budget), inside)
    decisions = []
    for length in range(96, 176, 8):
        loop.losses([tokens_of(4, length)])
        decisions.append(decision(loop))
    first = ["Record", "Time", "Record", "Replan", "Keep", "Keep"]
    assert decisions == [*first, "Record", "Replan", "Keep", "Keep"]


def test_batches_that_grow_by_more_than_the_headroom_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(autockpt.apply(language_model(), "1GB"), inside)
    loop.losses([tokens_of(1, 2**size) for size in range(1, 9)])
    (record,) = caplog.records
    assert "plan_for" in record.getMessage() and autockpt.plan_of(loop.model) is None


def positions(own: Told, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
    """Takes no more than so many tokens."""
    places = own.ids[:, : input_ids.shape[1]].expand(input_ids.shape)
    return own.inner((input_ids + places) % 1000, labels)


def test_headroom_beyond_what_a_model_takes_is_guessed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    model = Told(positions, inner=language_model(2), ids=torch.arange(160)[None])
    loop = Loop(autockpt.apply(model, "1GB"), inside)
    loop.losses([tokens_of(2, length) for length in (100, 100, 140, 140)])
    assert autockpt.plan_of(loop.model) is not None and decision(loop) == "Replan"
    assert not caplog.records


def looks(own: Told, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
    """Looks at values, which fake tensors do not have: random depth and masks that are drawn do so."""
    return own.inner(input_ids if input_ids.sum().item() >= 0 else -input_ids, labels)


@pytest.mark.parametrize("lengths", [(96, 96, 120, 120), (120, 120, 96, 150, 150)])
def test_headroom_is_that_of_larger_steps_that_were_seen_where_fake_tensors_do_not_run(
    lengths: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="autockpt")
    loop = Loop(autockpt.apply(Told(looks, inner=language_model(2)), "1GB"), inside)
    loop.losses([tokens_of(4, length) for length in lengths])
    assert "larger batches are guessed" in caplog.text and decision(loop) == "Replan"
    governor: Any = governor_of(loop.model)
    longest = max(shape[1] for shape in governor._state.history.current.kind.batches[0].shapes)
    real = plain_peak(tokens_of(4, longest), layers=2)
    assert longest == round(1.25 * max(lengths) + 0.1)
    assert real <= plan_of(loop).plain_peak_bytes <= 1.1 * real


def test_shapes_that_are_told_where_fake_tensors_do_not_run_are_not_foretold_too_small() -> None:
    shapes = {"input_ids": (4, 128), "labels": (4, 128)}
    loop = Loop(autockpt.apply(Told(looks, inner=language_model(2)), "1GB", plan_for=shapes), inside)
    loop.losses([tokens_of(4, 64)] * 3)
    assert plan_of(loop).plain_peak_bytes >= plain_peak(tokens_of(4, 128), layers=2)


@pytest.mark.parametrize("shapes", [{"input_idds": (4, 128)}, {"input_ids": (4, 128, 3)}])
def test_shapes_that_the_batch_does_not_have(shapes: Any) -> None:
    loop = Loop(autockpt.apply(language_model(), "60MB", plan_for=shapes), inside)
    with pytest.raises(BudgetError, match="input_ids"):
        loop.losses([tokens_of(2, 32)] * 3)


def test_steps_that_begin_with_gradients_get_a_plan_of_their_own_and_keep_it() -> None:
    batch = tokens_of(4, 128)
    budget = round(0.8 * plain_peak(batch, set_to_none=False))
    loop = Loop(autockpt.apply(language_model(), budget), inside, set_to_none=False)
    loop.losses([batch])
    assert decision(loop) == "Record"
    loop.losses([batch])
    assert decision(loop) == "Record"  # with gradients
    loop.losses([batch] * 2)
    first = plan_of(loop)
    assert loop.peak_bytes(batch) <= budget
    loop.model.zero_grad()
    loop.losses([batch])
    assert plan_of(loop) is first


def test_gradients_that_go_before_backward_count_only_until_then() -> None:
    """``optimizer.zero_grad()`` after forward: a step begins with gradients, and its backward does not meet them."""

    def forward(model: nn.Module, batch: Any) -> Any:
        found = inside(model, batch)
        model.zero_grad()
        return found

    batch = tokens_of(4, 128)
    loops = [Loop(model, forward) for model in (language_model(), autockpt.apply(language_model(), "1GB"))]
    for loop in loops:
        loop.optimizer.zero_grad = lambda **_: None  # type: ignore[method-assign]
        loop.losses([batch] * 4)
    assert plan_of(loops[1]).plain_peak_bytes == loops[0].peak_bytes(batch)


def test_an_optimizer_that_is_made_later_is_counted_from_its_first_step_on() -> None:
    batch = tokens_of(4, 128)
    budget = round(0.8 * plain_peak(batch))
    model = autockpt.apply(language_model(), budget)
    for _ in range(4):
        outputs, loss = inside(model, batch)
        loss.backward()
        del outputs, loss
        model.zero_grad()
    before = autockpt.plan_of(model)
    assert before is not None
    loop = Loop(model, inside)
    loop.losses([batch] * 2)
    assert plan_of(loop) is not before
    assert loop.peak_bytes(batch) <= budget


def greedy(hidden_bytes: int) -> Any:
    """A loss that holds memory of which the model does not know, until the step is over."""

    def forward(model: nn.Module, batch: Any) -> Any:
        outputs, loss = inside(model, batch)
        return (outputs, torch.empty(hidden_bytes, dtype=torch.uint8)), loss

    return forward


def test_what_the_users_own_loss_holds_is_counted() -> None:
    batch, forward = tokens_of(4, 128), greedy(3 * 10**6)
    peak_bytes = plain_peak(batch, forward)
    loop = Loop(autockpt.apply(language_model(), round(0.8 * peak_bytes)), forward)
    loop.losses([batch] * 4)
    assert plan_of(loop).plain_peak_bytes == peak_bytes
    assert loop.peak_bytes(batch) <= round(0.8 * peak_bytes)


@pytest.mark.parametrize("strict", [False, True])
def test_a_later_step_that_no_plan_holds(strict: bool, caplog: pytest.LogCaptureFixture) -> None:
    small, large = tokens_of(4, 64), tokens_of(4, 256)
    loop = Loop(autockpt.apply(language_model(), round(0.9 * plain_peak(small)), strict=strict), inside)
    loop.losses([small] * 3 + [large])
    if strict:
        with pytest.raises(Infeasible):
            loop.losses([large])
        assert autockpt.plan_of(loop.model) is None
        return
    loop.losses([large] * 3)
    assert decision(loop) == "Lowest"
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1 and "runs under the lowest one" in warned[0].getMessage()
    loop.losses([small])
    assert loop.peak_bytes(small) <= round(0.9 * plain_peak(small))


def test_no_plan_stays_on_where_somebody_has_patched_a_forward_over_the_librarys() -> None:
    """After `Infeasible` it did, since it could not be taken off."""
    small, large = tokens_of(4, 64), tokens_of(4, 256)
    loop = Loop(autockpt.apply(language_model(), round(0.9 * plain_peak(small)), strict=True), inside)
    loop.losses([small] * 3)
    assert autockpt.plan_of(loop.model) is not None
    for module in loop.model.modules():
        if "forward" in vars(module) and module is not loop.model:
            module.__dict__["forward"] = functools.partial(module.forward)
    loop.losses([large])
    with pytest.raises(Infeasible):
        loop.losses([large])
    assert autockpt.plan_of(loop.model) is None


def test_a_fault_of_a_module_with_a_slash_in_its_name_is_planned_with() -> None:
    """It was looked up by the part of its name before the slash, so that each plan recomputed it anew."""
    model = nn.Sequential()
    for name in ("a/b", "c"):
        model.add_module(name, nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    profile = autockpt.profile(model, torch.randn(4, 8))
    refused = refusing(profile, {"a/b.1#0": "draws"}).refused("call")
    assert {profile.calls[call].key for call in refused} == {"#0", "a/b#0", "a/b.1#0"}
