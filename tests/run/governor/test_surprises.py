"""Loops that do more than a forward, a backward and a step, and steps that change in more than their shapes."""

from __future__ import annotations

import copy
import enum
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import NotApplicable, Plan, Segment
from autockpt._check.measure import allocated_bytes
from autockpt._record.loss import assumed_loss
from autockpt._run.governor.batch import batch_of, enlarged
from autockpt._run.governor.foresight import Known
from autockpt._run.install import governor_of

BATCH = torch.linspace(-1, 1, 256 * 32).reshape(256, 32)
BUDGET = "1.3MB"


def stack(first: nn.Module | None = None) -> nn.Sequential:
    """The same model each time, after a layer of another."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)]
    return nn.Sequential(*([] if first is None else [first]), *blocks)


def plan_of(model: nn.Module) -> Plan:
    plan = autockpt.plan_of(model)
    assert plan is not None
    return plan


def twice(model: nn.Module, batch: Tensor) -> Tensor:
    once: Tensor = model(batch)
    return model(once) if once.requires_grad else once


def behind_a_layer(model: nn.Module, batch: Tensor) -> Tensor:
    torch.manual_seed(1)
    outputs: Tensor = model(nn.Linear(32, 32)(batch))
    return outputs


def in_a_region(model: nn.Module, batch: Tensor) -> Tensor:
    outputs: Tensor = checkpoint(model, batch, use_reentrant=False)
    return outputs


@pytest.mark.parametrize(
    ("forward", "first"),
    [(twice, None), (behind_a_layer, nn.ReLU(inplace=True)), (in_a_region, None)],
    ids=["its own output again", "a result of another graph, changed in place", "in a region of torch's"],
)
def test_what_the_caller_has_computed_before_is_left_alone(forward: Any, first: nn.Module | None) -> None:
    found = []
    for governed in (False, True):
        model = stack(first)
        if governed:
            autockpt.apply(model, "1.6MB")
        forward(model, BATCH).square().mean().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True) if one is not None)


def test_statistics_that_an_earlier_forward_of_the_same_step_has_read() -> None:
    model = autockpt.apply(nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), *stack()), BUDGET)
    small, large = model(BATCH[:16]), model(BATCH)  # recorded while the first one's graph waits
    (small.sum() + large.sum()).backward()
    assert plan_of(model)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = stack()

    def forward(self, batch: Tensor, *, predict: bool = False) -> Tensor:
        outputs: Tensor = self.body(batch)
        return outputs.argmax(-1) if predict else outputs


def test_a_forward_that_leads_to_no_backward_is_no_step() -> None:
    model = autockpt.apply(Classifier(), BUDGET)
    expected = Classifier()(BATCH, predict=True)
    for _ in range(2):
        assert torch.equal(model(BATCH, predict=True), expected)
        assert autockpt.plan_of(model) is None
    model(BATCH).square().mean().backward()
    plan = plan_of(model)
    assert torch.equal(model(BATCH, predict=True), expected)
    assert plan.segments
    assert plan_of(model) is plan


def test_a_list_that_forward_fills_is_filled_once() -> None:
    class Collecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = stack()

        def forward(self, hidden: Tensor, seen: list[Tensor]) -> Tensor:
            for block in self.blocks:
                hidden = block(hidden)
                seen.append(hidden)
            return hidden

    seen: list[Tensor] = []
    model = autockpt.apply(Collecting(), BUDGET)
    model(BATCH, seen)
    assert len(seen) == 6
    assert plan_of(model)


def test_layers_that_are_unfrozen_later_get_a_plan() -> None:
    model = stack()
    model[:5].requires_grad_(False)
    autockpt.apply(model, BUDGET)
    model(BATCH).sum().backward()
    assert not plan_of(model).segments
    model.requires_grad_(True)
    model.zero_grad()
    model(BATCH).sum().backward()
    assert plan_of(model).segments


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize("change", ["trainable", "training", "autocast", "dtype", "switch", "enumeration"])
def test_what_a_step_depends_on_besides_its_shapes(change: str) -> None:
    model, arguments = stack(), {"switch": torch.float32, "colour": Colour.RED}

    def kind() -> Any:
        return batch_of(model, lambda hidden, **_: hidden, (BATCH,), arguments).kind

    before = kind()
    assert kind() == before
    if change == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            assert kind() != before
        return
    if change == "trainable":
        model[0].requires_grad_(False)
    elif change == "training":
        model[0].eval()
    elif change == "dtype":
        model[0].double()
    elif change == "switch":
        arguments["switch"] = torch.bfloat16
    else:
        arguments["colour"] = Colour.BLUE
    assert kind() != before


def test_more_gradients_than_were_there_are_not_included() -> None:
    batch = batch_of(stack(), lambda hidden: hidden, (BATCH,), {})
    profile = autockpt.profile(nn.Linear(32, 32), BATCH)
    some = Known(batch=batch, gradient_bytes=100, profile=profile, recorded=True)
    assert some.includes(batch, 0) and some.includes(batch, 100)
    assert not some.includes(batch, 101)


@pytest.mark.parametrize("beside", ["auxiliary", "made of it", "made of it, by name"])
def test_a_small_output_is_the_whole_loss_only_where_it_is_made_of_the_large_ones(beside: str) -> None:
    weight, other = torch.ones(8, 4, requires_grad=True), torch.ones(3, requires_grad=True)
    large = torch.ones(16, 8) @ weight
    loss = other.exp().sum() if beside == "auxiliary" else large.square().mean() + other.sum()
    outputs = {"loss": loss, "later": large.exp()} if "name" in beside else (large, loss)
    found = torch.autograd.grad(assumed_loss(outputs), (weight, other))
    assert all(gradient is not None for gradient in found)
    reserved = not found[0].any()  # what a reserve hands on is zero
    assert reserved == (beside == "auxiliary")


def several(*hidden: Tensor, **_: object) -> Tensor:
    return hidden[0]


def positional(hidden: Tensor, /) -> Tensor:
    return hidden


@pytest.mark.parametrize(
    ("forward", "name"), [(several, "hidden[0]"), (positional, "hidden")], ids=["any number", "positional only"]
)
def test_larger_shapes_go_where_the_arguments_were(forward: Callable[..., Tensor], name: str) -> None:
    args, kwargs = enlarged(forward, (BATCH,), {}, {name: (512, 16)})
    assert [tuple(each.shape) for each in args] == [(512, 32)]  # never smaller than the batch itself
    assert torch.equal(args[0], torch.cat([BATCH, BATCH])) and not kwargs


def test_the_largest_shapes_count_where_a_batch_is_given_too() -> None:
    small = autockpt.apply(stack(), BUDGET, inputs=BATCH[:16], plan_for={"input": (256, 32)})
    assert plan_of(small).segments
    assert plan_of(small).plain_peak_bytes == plan_of(autockpt.apply(stack(), BUDGET, inputs=BATCH)).plain_peak_bytes


def test_a_frozen_model_that_hands_gradients_on_is_no_training_step() -> None:
    model = autockpt.apply(stack().requires_grad_(False), BUDGET)
    batch = BATCH.clone().requires_grad_()
    model(batch).sum().backward()
    assert batch.grad is not None
    assert autockpt.plan_of(model) is None


def test_a_wrapper_may_call_the_model_otherwise() -> None:
    model = autockpt.apply(stack(), BUDGET, plan_for={"input": (256, 32)})
    planned: Callable[..., Any] = model.forward

    def wrapper(batch: dict[str, Tensor]) -> Any:
        return planned(batch["hidden"])

    model.__dict__["forward"] = wrapper
    model({"hidden": BATCH[:16]}).sum().backward()
    model.__dict__["forward"] = planned
    assert plan_of(model).segments


@pytest.mark.parametrize("given", [None, BATCH], ids=["planned in the first step", "planned before"])
def test_a_wrapper_that_says_what_it_wraps_does_not_hide_the_plan(given: Tensor | None) -> None:
    model = autockpt.apply(stack(), BUDGET, inputs=given)
    planned: Callable[..., Any] = model.forward
    # accelerate's mixed precision goes over the forward in this way
    model.__dict__["forward"] = functools.wraps(planned)(torch.autocast("cpu", torch.bfloat16)(planned))
    model(BATCH).sum().backward()
    assert plan_of(model).segments
    assert autockpt.plan_of(copy.deepcopy(model)) is None  # which runs the original
    model.__dict__["forward"] = planned
    assert plan_of(model).segments
    autockpt.remove(model)
    assert autockpt.plan_of(model) is None


@pytest.mark.parametrize(
    "use", [autockpt.remove, lambda model: autockpt.profile(model, BATCH)], ids=["remove", "profile"]
)
@pytest.mark.parametrize("plan", [Plan(), Plan(segments=(Segment(calls=("2#0",)),))], ids=["the root alone", "a child"])
def test_a_plan_behind_a_wrapper_stays_where_it_is(plan: Plan, use: Callable[[nn.Module], object]) -> None:
    model = autockpt.apply(stack(), plan=plan)
    wrapper = functools.wraps(model.forward)(torch.autocast("cpu", torch.bfloat16)(model.forward))
    model.__dict__["forward"] = wrapper
    with pytest.raises(NotApplicable, match="forward was replaced after the plan was applied"):
        use(model)
    assert model.__dict__["forward"] is wrapper
    assert plan_of(model) == plan


def test_the_plan_of_another_model_is_not_this_ones() -> None:
    inner, outer = autockpt.apply(stack(), plan=Plan()), nn.Sequential()
    outer.__dict__["forward"] = functools.wraps(inner.forward)(lambda batch: inner(batch))
    assert autockpt.plan_of(outer) is None


def test_a_wrapper_of_itself_hides_no_plan() -> None:
    model = stack()
    model.__dict__["forward"] = lambda batch: batch
    model.__dict__["forward"].__wrapped__ = model.__dict__["forward"]
    assert autockpt.plan_of(model) is None


def measured(steps: int = 2) -> nn.Module:
    """A model with a budget that leaves room for what other tests keep alive."""
    gc.collect()
    model = stack()
    others = allocated_bytes(torch.device("cpu")) - sum(parameter.nbytes for parameter in model.parameters())
    return autockpt.apply(model, others + 1_900_000, measured_steps=steps)


def failing(model: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        model(BATCH[:, :16])


@pytest.mark.parametrize("between", [lambda model: model.eval()(BATCH), failing], ids=["evaluation", "failure"])
def test_what_comes_between_two_steps_is_not_measured(between: Callable[[nn.Module], object]) -> None:
    model = measured()
    model(BATCH).sum().backward()
    governor: Any = governor_of(model)
    assert governor._gauge._meter is not None
    between(model)
    assert governor._gauge.read() is None


def test_state_that_the_optimizer_makes_in_a_measured_step_is_not_taken_for_room() -> None:
    model = measured()
    optimizer = torch.optim.Adam(model.parameters())
    plans = []
    for _ in range(3):
        model(BATCH).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        plans.append(plan_of(model))
    assert plans[0].segments
    assert plans[1].recompute_seconds >= plans[0].recompute_seconds
    autockpt.remove(model)


def test_a_copy_knows_an_optimizer_by_its_name() -> None:
    model: Any = copy.deepcopy(autockpt.apply(stack(), "2MB", optimizer="adam"))
    governor: Any = governor_of(model)
    assert governor._request.optimizer == "adam"
