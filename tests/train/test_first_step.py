"""A budget and nothing else: step 1 is recorded, step 2 timed, and the plan made as step 3 begins."""

from __future__ import annotations

import copy
import logging
import os
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from autockpt import Infeasible
from tests.doors import governor_of
from tests.end_to_end.reference import counting_replays
from tests.train.loops import Loop, inside, language_model, outside, tokens_of
from tests.zoo import gpt2

BATCH = tokens_of(4, 128)
BATCHES = [tokens_of(4, 128, seed) for seed in range(10)]


def plain_peak(forward: Any, **options: Any) -> int:
    loop = Loop(language_model(), forward, **options)
    loop.losses(BATCHES[:2])
    return loop.peak_bytes(BATCH)


def governed(forward: Any, share: float, **options: Any) -> tuple[Loop, int]:
    budget = round(share * plain_peak(forward, **options))
    return Loop(autockpt.apply(language_model(), budget), forward, **options), budget


def segments(model: nn.Module) -> int:
    plan = autockpt.plan_of(model)
    assert plan is not None
    return len(plan.segments)


def train(model: nn.Module, steps: int = 3) -> None:
    """So many steps without an optimizer."""
    for _ in range(steps):
        model.zero_grad()
        inside(model, BATCH)[1].backward()


@pytest.mark.parametrize(
    ("forward", "share", "accumulate"),
    [(inside, 0.75, 1), (outside, 0.9, 1), (inside, 0.75, 2)],
    ids=["loss inside", "loss outside", "accumulation"],
)
def test_ten_steps_are_the_plain_ones_and_keep_to_the_budget(forward: Any, share: float, accumulate: int) -> None:
    plain = Loop(language_model(), forward, accumulate=accumulate).losses(BATCHES)
    loop, budget = governed(forward, share, accumulate=accumulate)
    with counting_replays() as replays:
        assert loop.losses(BATCHES) == plain
    assert replays and segments(loop.model)
    assert loop.peak_bytes(BATCH) <= budget
    plan = autockpt.plan_of(loop.model)
    first = Loop(autockpt.apply(language_model(), plan=plan), forward, accumulate=accumulate)
    assert first.peak_bytes(BATCH) <= budget  # with no optimizer state yet


@pytest.mark.sweep
@pytest.mark.parametrize("forward", [inside, outside], ids=["loss inside", "loss outside"])
def test_a_gpt2_with_fifty_thousand_tokens(forward: Any) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return gpt2(vocab_size=50257, n_embd=192, n_layer=12).train()

    batches = [tokens_of(2, 128, seed) for seed in range(10)]
    reference = Loop(model(), forward)
    plain = reference.losses(batches)
    budget = round(0.9 * reference.peak_bytes(batches[0]))
    loop = Loop(autockpt.apply(model(), budget), forward)
    assert loop.losses(batches) == plain
    assert segments(loop.model)
    assert loop.peak_bytes(batches[0]) <= budget
    first = Loop(autockpt.apply(model(), plan=autockpt.plan_of(loop.model)), forward)
    assert first.peak_bytes(batches[0]) <= budget


def test_one_file_serves_the_first_steps_and_is_closed_when_the_plan_is_rehearsed(descriptors: list[int]) -> None:
    model = autockpt.apply(language_model(), "12MB")
    train(model, 2)
    (descriptor,) = descriptors
    os.fstat(descriptor)
    train(model, 1)
    assert segments(model)
    assert descriptors == [descriptor]
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_evaluation_before_training_plans_nothing() -> None:
    model = autockpt.apply(language_model(), "12MB")
    with torch.no_grad():
        model(**BATCH)
    model.eval()
    model(**BATCH).logits.sum().backward()
    assert autockpt.plan_of(model) is None
    model.train()
    train(model, 2)
    assert autockpt.plan_of(model) is None
    train(model, 1)
    assert autockpt.plan_of(model) is not None


def test_a_first_forward_that_fails_is_the_users_own_and_planning_is_tried_again() -> None:
    model = autockpt.apply(language_model(), "12MB")
    before = {name: sorted(module.__dict__) for name, module in model.named_modules()}
    with pytest.raises(IndexError):
        model(input_ids=torch.full((2, 8), 10**6))
    assert {name: sorted(module.__dict__) for name, module in model.named_modules()} == before
    assert autockpt.plan_of(model) is None
    train(model)
    assert autockpt.plan_of(model) is not None


def test_a_budget_that_no_plan_meets_is_said_as_step_3_begins_and_leaves_the_model_as_it_was() -> None:
    model = language_model()
    before = [dict(module.__dict__) for module in model.modules()]
    train(autockpt.apply(model, "1MB"), 2)
    model.zero_grad()
    with pytest.raises(Infeasible) as caught:
        inside(model, BATCH)
    assert [dict(module.__dict__) for module in model.modules()] == before
    autockpt.apply(model, caught.value.minimum_bytes)
    train(model)
    assert segments(model)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_removing_leaves_no_trace_before_the_first_step_and_after_it(steps: int) -> None:
    model = language_model()
    before = [dict(module.__dict__) for module in model.modules()]
    autockpt.remove(autockpt.apply(model, "12MB"))
    assert [dict(module.__dict__) for module in model.modules()] == before
    autockpt.apply(model, "12MB")
    train(model, steps)
    model.zero_grad()
    autockpt.remove(model)
    assert [dict(module.__dict__) for module in model.modules()] == before


def knows(model: nn.Module) -> object:
    """What the root's forward knows of its plan, and of what it has put on the model."""
    governor = governor_of(model)
    assert governor is not None
    return governor.handle


@pytest.mark.parametrize("trained", [0, 1, 3])
def test_a_copy_keeps_to_the_budget_by_itself_and_that_is_said_once(
    trained: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="autockpt")
    loop, budget = governed(inside, 0.75)
    loop.losses(BATCHES[:trained])
    copy.deepcopy(loop.model)
    twin = Loop(copy.deepcopy(loop.model), inside)
    assert caplog.text.count("a deep copy of ") == 1
    assert autockpt.plan_of(twin.model) == autockpt.plan_of(loop.model)
    assert knows(twin.model) is not knows(loop.model)
    assert twin.losses(BATCHES[:3]) == Loop(copy.deepcopy(autockpt.remove(loop.model)), inside).losses(BATCHES[:3])
    assert segments(twin.model)
    assert twin.peak_bytes(BATCH) <= budget


def test_a_forward_that_others_wrap_meanwhile_stays_wrapped() -> None:
    """As accelerate does for mixed precision: after `apply`, before the first step."""
    loop, budget = governed(inside, 0.75)
    planned, seen = loop.model.forward, []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return planned(*args, **kwargs)

    loop.model.forward = wrapped
    assert loop.losses(BATCHES[:3]) == Loop(language_model(), inside).losses(BATCHES[:3])
    assert seen and loop.model.forward is wrapped
    assert loop.peak_bytes(BATCH) <= budget


def test_the_models_own_hooks_run_once_a_step() -> None:
    model = autockpt.apply(language_model(), "12MB")
    seen: list[str] = []
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_forward_hook(lambda *_: seen.append("after"))
    train(model)
    assert seen == ["before", "after"] * 3
    assert segments(model)


@pytest.mark.usefixtures("bfloat16")
def test_inside_autocast_every_step_is_the_plain_one() -> None:
    """What is cast while a step is recorded or replayed must not be found in the cache of the caller's region."""

    def stack() -> nn.Module:
        torch.manual_seed(0)
        blocks = (nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.Dropout(0.1)) for _ in range(6))
        return nn.Sequential(*blocks)

    def gradients(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        found = []
        for _ in range(4):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                model(torch.linspace(-1, 1, 256 * 32).reshape(256, 32)).float().square().mean().backward()
            found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        return found

    plain = gradients(stack())
    model = autockpt.apply(stack(), "1MB")
    with counting_replays() as replays:
        planned = gradients(model)
    assert replays and segments(model)
    assert all(torch.equal(one, other) for one, other in zip(plain, planned, strict=True))


@pytest.mark.parametrize("within", [False, True], ids=["around the step", "inside it"])
def test_a_profiler_that_the_user_runs_is_named_and_its_trace_left_whole(
    within: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, loss = autockpt.apply(language_model(), "12MB"), torch.zeros(())
    if within:
        loss = inside(model, BATCH)[1]
    with torch.profiler.profile() as profiler:
        torch.ones(3).cumsum(0)
        if not within:
            loss = inside(model, BATCH)[1]
        loss.backward()
        torch.ones(3).cumprod(0)
    assert {"aten::cumsum", "aten::cumprod", "aten::mm"} <= {event.key for event in profiler.key_averages()}
    train(model, 2)
    assert autockpt.plan_of(model) is None
    assert sum("a later one" in record.getMessage() for record in caplog.records) == 1
    train(model, 1)
    assert autockpt.plan_of(model) is not None
