"""Tensors that forwards leave at attributes of modules: what the next step finds there, and a replay may read."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.toys.told import Told

WIDTH, STEPS = 32, 6


def block(leave: Callable[[Told, Tensor], Tensor]) -> nn.Module:
    """Two linear layers; `leave` says what a step leaves of the first, and what the second is given."""
    one, two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return Told(lambda own, x: own.two(leave(own, torch.tanh(own.one(x)))), one=one, two=two, left=None, steps=0)


def plainly(own: Told, inner: Tensor) -> Tensor:
    own.left = inner
    return inner


def lists(own: Told, inner: Tensor) -> Tensor:
    own.left = {"newest": [inner.detach().clone()], "norm": inner.detach().norm()}
    return inner


@dataclass
class Left:
    """What an output class of a library is like."""

    inner: Tensor
    twice: Tensor


def dataclasses(own: Told, inner: Tensor) -> Tensor:
    own.left = Left(inner.detach(), inner.detach() * 2)
    return inner


def running_state(own: Told, inner: Tensor) -> Tensor:
    """Its replay reads what the step before left."""
    before, own.left = own.left, inner.detach()
    return inner if before is None else inner + 0.1 * before


def looks_only(own: Told, inner: Tensor) -> Tensor:
    """It asks what the one before was like, and reads no value of it."""
    if own.left is not None and own.left.shape == inner.shape and own.left.size(0) > 1:
        inner = inner * 2
    own.left = inner.detach()
    return inner


def read_sometimes(own: Told, inner: Tensor) -> Tensor:
    """In the last step it reads what no step before has read."""
    own.steps += 1
    before, own.left = own.left, inner.detach()
    return inner + 0.1 * before if own.steps == STEPS else inner


def normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        one, two = (nn.utils.spectral_norm(nn.Linear(*each)) for each in ((WIDTH, 128), (128, WIDTH)))
    return nn.Sequential(one, nn.GELU(), two)


class Trained(NamedTuple):
    """Losses and weights, the highest peak of the last steps, and the plan."""

    losses: list[float]
    weights: list[Tensor]
    peak_bytes: int
    plan: autockpt.Plan | None


def trained(build: Callable[[], nn.Module], budget: int | str | None, steps: int = STEPS) -> Trained:
    """Train for a few steps; the last two are measured."""
    torch.manual_seed(0)
    model = nn.Sequential(*(build() for _ in range(6)))
    if budget is not None:
        autockpt.apply(model, budget)
    losses: list[float] = []

    def step() -> None:
        batch = torch.full((512, WIDTH), 0.1 * len(losses))
        loss = model(batch).square().mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None

    for _ in range(steps - 2):
        step()
    peaks = [autockpt.measure(step).peak_bytes for _ in range(2)]
    plan = autockpt.plan_of(model) if budget is not None else None
    return Trained(losses, [each.detach().clone() for each in model.parameters()], max(peaks), plan)


def assert_exact(found: Trained, plain: Trained) -> None:
    assert found.losses == plain.losses
    assert all(map(torch.equal, found.weights, plain.weights))


@pytest.mark.parametrize(
    "build",
    [*(functools.partial(block, leave) for leave in (plainly, lists, dataclasses, running_state, looks_only)), normed],
    ids=["plainly", "lists", "dataclasses", "running state", "looks only", "normed"],
)
def test_what_a_forward_finds_at_an_attribute_is_counted_or_not_held(build: Callable[[], nn.Module]) -> None:
    """What the step before left was held for each replay and never counted: the lowest peak stood 53 % too high."""
    trained(build, None)  # what is done once is done
    plain = trained(build, None)
    kept = sum(each.nbytes for each in plain.weights)
    lowest = trained(build, "lowest")
    assert lowest.plan is not None
    assert lowest.plan.segments
    assert_exact(lowest, plain)
    assert lowest.peak_bytes - kept <= lowest.plan.peak_bytes < plain.peak_bytes


def test_a_forward_that_reads_after_all_what_no_step_read_has_it_held() -> None:
    """In the recorded step forward overwrote it unread, so nothing held it; in a later step forward reads it first."""
    plain, found = (trained(lambda: block(read_sometimes), budget) for budget in (None, "lowest"))
    assert found.plan is not None
    assert any(segment.unread for segment in found.plan.segments)
    assert_exact(found, plain)


def test_a_loop_may_let_go_of_an_attribute_before_backward() -> None:
    """Forward has not overwritten it in this step: a replay finds it as forward did, though it is gone by then."""

    def read_at_last(own: Told, inner: Tensor) -> Tensor:
        own.steps += 1
        if own.steps < STEPS:
            own.left = inner.detach()
            return inner
        found: Tensor = inner + own.left
        return found

    def gradients(budget: str | None) -> list[Tensor | None]:
        torch.manual_seed(0)
        model = nn.Sequential(*(block(read_at_last) for _ in range(6)))
        if budget is not None:
            autockpt.apply(model, budget)
        for _ in range(STEPS):
            model.zero_grad()
            loss = model(torch.ones(64, WIDTH)).square().mean()
            for each in model.children():
                if isinstance(each, Told) and each.steps == STEPS:
                    each.left = None
            loss.backward()
        return [each.grad for each in model.parameters()]

    for one, other in zip(gradients(None), gradients("lowest"), strict=True):
        assert one is not None and other is not None
        assert torch.equal(one, other)


def test_nothing_of_ours_stays_on_a_tensor_that_forward_found() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(block(plainly) for _ in range(6)))
    autockpt.apply(model, "lowest")
    found: list[Tensor] = []
    for _ in range(STEPS):
        found += [each.left for each in model.children() if isinstance(each.left, Tensor)]
        model(torch.ones(64, WIDTH)).sum().backward()
    assert all(type(each) is Tensor and not vars(each) for each in found)
