"""Loops that do more than a forward, a backward and a step, and steps that change in more than their shapes."""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import NotApplicable, Plan, Segment
from tests.doors import BatchKind, Forward, assumed_loss, batch_of, enlarged, governor_of, watching_replays
from tests.toys.told import Told, around

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


def train(model: nn.Module, steps: int = 3, batch: Tensor = BATCH) -> None:
    """So many steps without an optimizer."""
    for _ in range(steps):
        model.zero_grad()
        model(batch).square().mean().backward()


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


def test_several_forwards_before_one_backward_are_one_step() -> None:
    def siamese() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), *stack())

    def step(model: nn.Module) -> list[Tensor]:
        model.zero_grad()
        one, other = model(BATCH), model(BATCH.flip(0))
        (one - other).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    model, twin = siamese(), siamese()
    plain_bytes = autockpt.measure(lambda: step(twin), device="cpu").step_bytes
    twin = siamese()
    autockpt.apply(
        model, sum(each.nbytes for each in (*model.parameters(), *model.buffers(), BATCH)) + plain_bytes // 2
    )
    for _ in range(5):
        assert all(map(torch.equal, step(model), step(twin)))
    assert all(map(torch.equal, model.buffers(), twin.buffers()))
    plan = plan_of(model)
    assert plan.peak_bytes <= (plan.budget_bytes or 0)
    occurrences = {call.rpartition("#")[2] for segment in plan.segments for call in segment.calls}
    assert occurrences == {"0", "1"}
    assert autockpt.measure(lambda: step(model), device="cpu").step_bytes <= plain_bytes // 2
    model.zero_grad()
    model(BATCH).square().mean().backward()  # fewer are covered
    governor: Any = governor_of(model)
    assert governor._step.decision.what == "Keep"


def test_more_forwards_than_the_plan_counts_on_are_spilled_and_the_next_step_is_recorded() -> None:
    model = autockpt.apply(stack(), BUDGET)
    train(model)
    governor: Any = governor_of(model)
    decisions = []
    for _ in range(3):
        model.zero_grad()
        (model(BATCH) + model(BATCH)).square().mean().backward()
        decisions.append(governor._step.decision.what)
    assert decisions == ["Keep", "Record", "Replan"]


def classifier() -> nn.Module:
    return around(stack(), lambda inner, x, predict=False: inner(x).argmax(-1) if predict else inner(x))


def test_a_forward_that_leads_to_no_backward_is_no_step(caplog: pytest.LogCaptureFixture) -> None:
    model = autockpt.apply(classifier(), BUDGET)
    expected = classifier()(BATCH, predict=True)
    for _ in range(4):
        assert torch.equal(model(BATCH, predict=True), expected)
        assert autockpt.plan_of(model) is None
    train(model)
    plan = plan_of(model)
    assert torch.equal(model(BATCH, predict=True), expected)
    train(model, 1)
    assert plan.segments
    assert plan_of(model) is plan
    assert not caplog.records


def test_a_backward_that_never_comes_is_said_and_a_later_step_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    model = autockpt.apply(stack(), BUDGET)
    model(BATCH).sum()
    train(model)
    assert "no backward came" in caplog.text
    assert plan_of(model).segments


def test_a_list_that_forward_fills_is_filled_once() -> None:
    def collects(own: Told, hidden: Tensor, seen: list[Tensor]) -> Tensor:
        for block in own.blocks:
            hidden = block(hidden)
            seen.append(hidden)
        return hidden

    model = autockpt.apply(Told(collects, blocks=stack()), BUDGET)
    for _ in range(4):
        seen: list[Tensor] = []
        model.zero_grad()
        model(BATCH, seen).sum().backward()
        assert len(seen) == 6
    assert plan_of(model)


def test_layers_that_are_unfrozen_later_get_a_plan() -> None:
    model = stack()
    model[:5].requires_grad_(False)
    autockpt.apply(model, BUDGET)
    train(model)
    assert not plan_of(model).segments
    model.requires_grad_(True)
    train(model, 2)
    assert plan_of(model).segments


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize("change", ["trainable", "training", "autocast", "dtype", "switch", "enumeration", "block"])
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
    elif change == "block":
        model[0] = copy.deepcopy(model[0])
    elif change == "switch":
        arguments["switch"] = torch.bfloat16
    else:
        arguments["colour"] = Colour.BLUE
    assert kind() != before


def test_what_a_kind_of_step_covers() -> None:
    def batch(samples: int, *others: Any) -> Any:
        return batch_of(stack(), lambda hidden, *_: hidden, (BATCH[:samples], *others), {})

    def batches(*samples: int) -> Any:
        model = stack()
        return tuple(batch_of(model, lambda hidden: hidden, (BATCH[:each],), {}) for each in samples)

    (small, large) = batches(16, 256)
    assert BatchKind(batches=(large,), gradient_bytes=100).covers([small], 100)
    assert not BatchKind(batches=(large,), gradient_bytes=100).covers([large], 101)
    assert not BatchKind(batches=(small,), gradient_bytes=100).covers([large], 0)
    assert BatchKind(batches=(large, small), gradient_bytes=0).covers([small], 0)
    assert not BatchKind(batches=(large, small), gradient_bytes=0).covers([large, large], 0)
    assert not BatchKind(batches=(large,), gradient_bytes=0).covers([large, small], 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [(2, 3), ([1, 2], [1, 3]), ([1], [1, 1]), (numpy.zeros(3), numpy.zeros(4)), (numpy.zeros(3), numpy.zeros(3, int))],
    ids=["number", "numbers", "list", "array", "type of an array"],
)
def test_arguments_that_are_no_tensors(one: Any, other: Any) -> None:
    model = stack()
    first, second = (batch_of(model, lambda hidden, _: hidden, (BATCH, each), {}) for each in (one, other))
    assert first.covers(first) and not first.covers(second)


def test_a_number_that_only_counts_ends_up_as_no_kind_of_step() -> None:
    model = autockpt.apply(around(stack(), lambda inner, x, step: inner(x)), BUDGET)
    for step in range(8):
        model.zero_grad()
        model(BATCH, step).square().mean().backward()
    governor: Any = governor_of(model)
    assert plan_of(model).segments and governor._step.decision.what == "Keep"


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
    args, kwargs = enlarged(Forward(stack(), forward, ((BATCH,), {})), {name: (512, 16)})
    assert [tuple(each.shape) for each in args] == [(512, 32)]  # never smaller than the batch itself
    assert torch.equal(args[0], torch.cat([BATCH, BATCH])) and not kwargs


def test_the_largest_shapes_count_where_a_batch_is_given_too() -> None:
    small = autockpt.apply(stack(), BUDGET, inputs=BATCH[:16], plan_for={"input": (256, 32)})
    assert plan_of(small).segments
    assert plan_of(small).plain_peak_bytes == plan_of(autockpt.apply(stack(), BUDGET, inputs=BATCH)).plain_peak_bytes


def test_a_frozen_model_that_hands_gradients_on_is_no_training_step() -> None:
    model = autockpt.apply(stack(), BUDGET).requires_grad_(False)
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
    for _ in range(3):
        model.zero_grad()
        model({"hidden": BATCH[:16]}).sum().backward()
    model.__dict__["forward"] = planned
    assert plan_of(model).segments


@pytest.mark.parametrize("given", [None, BATCH], ids=["planned in step 3", "planned before"])
def test_a_wrapper_that_says_what_it_wraps_does_not_hide_the_plan(given: Tensor | None) -> None:
    # The lowest peak: what a plain step in half precision holds differs between processors, by BUDGET's last per cent.
    model = autockpt.apply(stack(), "lowest", inputs=given)
    planned: Callable[..., Any] = model.forward
    # accelerate's mixed precision goes over the forward in this way
    model.__dict__["forward"] = functools.wraps(planned)(torch.autocast("cpu", torch.bfloat16)(planned))
    wrapped = model.__dict__["forward"]
    train(model)
    assert plan_of(model).segments
    assert model.__dict__["forward"] is wrapped
    assert autockpt.plan_of(copy.deepcopy(model)) is None  # which runs the original
    model.__dict__["forward"] = planned
    assert plan_of(model).segments
    autockpt.remove(model)
    assert autockpt.plan_of(model) is None


@pytest.mark.parametrize("plan", [Plan(), Plan(segments=(Segment(calls=("2#0",)),))], ids=["the root alone", "a child"])
def test_a_plan_behind_a_wrapper_stays_where_it_is(plan: Plan) -> None:
    model = autockpt.apply(stack(), plan=plan)
    wrapper = functools.wraps(model.forward)(torch.autocast("cpu", torch.bfloat16)(model.forward))
    model.__dict__["forward"] = wrapper
    with pytest.raises(NotApplicable, match="forward was replaced after the plan was applied"):
        autockpt.profile(model, BATCH)
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


def test_a_copy_knows_an_optimizer_by_its_name() -> None:
    model: Any = copy.deepcopy(autockpt.apply(stack(), "2MB", optimizer="adam"))
    governor: Any = governor_of(model)
    assert governor._request.optimizer == "adam"


def test_nested_tensors_whose_rows_have_lengths_of_their_own_train() -> None:
    torch.manual_seed(0)
    model = autockpt.apply(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), "1GB")
    for lengths in [(3, 5), (3, 5), (2, 4), (6, 7), (1, 9)]:
        rows = [torch.randn(length, 8) for length in lengths]
        model(torch.nested.nested_tensor(rows, layout=torch.jagged)).values().square().mean().backward()
        model.zero_grad()
    plan_of(model)


def test_steps_with_one_forward_and_with_two_may_take_turns(caplog: pytest.LogCaptureFixture) -> None:
    """They begin alike: only a step that has begun its second forward shows which it is."""
    caplog.set_level("INFO", logger="autockpt")
    model = autockpt.apply(stack(), BUDGET)
    for forwards in [1, 2] * 8:
        sum((model(BATCH).square().mean() for _ in range(forwards)), torch.zeros(())).backward()
        model.zero_grad()
    assert sum("recorded a step" in record.getMessage() for record in caplog.records) == 3
    with watching_replays(model) as replayed:
        (model(BATCH).square().mean() + model(BATCH).square().mean()).backward()
    assert any(key.endswith("#1") for keys in replayed for key in keys)


def test_an_inner_loop_over_weights_of_its_own_is_one_step(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """Second-order MAML: forwards wait for their backward while others have theirs. Its step ended at each of those."""
    caplog.set_level("INFO", logger="autockpt")
    model = autockpt.apply(stack(), "1GB")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(12):
        weights: dict[str, Tensor] = {**dict(model.named_parameters())}
        total = torch.zeros(())
        for _ in range(2):
            loss = torch.func.functional_call(model, weights, (BATCH,)).square().mean()
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            fast = {name: weights[name] - 0.1 * each for name, each in zip(weights, gradients, strict=True)}
            total = total + torch.func.functional_call(model, fast, (BATCH,)).square().mean()
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sum("recorded a step" in record.getMessage() for record in caplog.records) == 1
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    assert not [each for each in recwarn if "not a leaf" in str(each.message)]
    governor: Any = governor_of(model)
    assert len(governor._step.batches) == 4 and plan_of(model).segments == ()
