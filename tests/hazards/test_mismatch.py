"""A plan that no longer matches the model costs memory and says so, or raises; gradients stay right."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, Segment
from tests.frames.comparing import steps
from tests.frames.models import WIDTH, Tower, batch, summed
from tests.hosts import host
from tests.toys.chains import InTurn
from tests.toys.told import Told, around


class Ordered(InTurn):
    """Runs its blocks in the order in which it is told, with code of its own between them, or none."""

    def __init__(self, between: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        torch.manual_seed(0)
        blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4))
        super().__init__(blocks, lambda _, block, x: between(block(x)))
        self.order = [0, 1, 2, 3]

    def forward(self, x: Tensor) -> Tensor:
        for index in self.order:
            x = self.run(index, self.blocks[index], x)
        return x


RUN = Segment(calls=tuple(f"blocks.{i}#0" for i in range(4)), linked=tuple(f"blocks.{i}#0" for i in range(1, 4)))


def planned(model: Ordered) -> Ordered:
    autockpt.apply(model, plan=Plan(segments=(RUN,)))
    return model


def said(model: nn.Module) -> list[str]:
    """Check a model's steps against those of its plain twin; return what it warns of."""
    plain = autockpt.remove(copy.deepcopy(model))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert steps(plain, summed).differences(steps(model, summed)) == []
    return [str(warning.message) for warning in caught]


def test_a_model_as_it_was_planned_says_nothing() -> None:
    assert said(planned(Ordered())) == []


def test_calls_in_another_order_are_named_once() -> None:
    model = planned(Ordered())
    model.order = [0, 2, 1, 3]
    (message,) = said(model)
    assert message.startswith("blocks.1#0 begins its segment anew")


def test_new_code_between_calls_is_named_once() -> None:
    found = said(planned(Ordered(lambda x: x * 2)))
    assert [message.split(" takes no result")[0] for message in found] == [f"blocks.{i}#0" for i in (1, 2, 3)]


def test_an_early_exit_and_a_skipped_call_are_normal() -> None:
    model = planned(Ordered())
    for order in ([0, 1], [0, 2, 3], [2, 3]):
        model.order = order
        assert said(model) == []


def test_calls_of_two_forwards_of_one_parent_cannot_be_one_frame() -> None:
    again = around(Ordered(), lambda inner, x: inner(inner(x)))
    model = autockpt.apply(again, plan=Plan.of([["inner.blocks.3#0", "inner.blocks.0#1"]]))
    (message,) = said(model)
    assert message.startswith("inner.blocks.0#1 begins its segment anew")


class Doubled(torch.autograd.Function):
    """Code between calls that is no torch function, so that no segment can take it in."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


@pytest.mark.parametrize(
    ("model", "linked"),
    [(Ordered(), True), (Ordered(lambda x: x * 2), True), (Ordered(Doubled.apply), False)],
    ids=["nothing", "glue", "hidden"],
)
def test_a_recorded_plan_knows_which_calls_hand_on_their_results(model: nn.Module, linked: bool) -> None:
    profile = autockpt.profile(model, batch(256, WIDTH))
    with host(replay_seconds=1.0):  # the longer the better
        plan = autockpt.solve(profile, "1GB", solver="uniform")
    runs = [segment for segment in plan.segments if len(segment.calls) > 1]
    assert runs
    assert all(segment.linked == (segment.calls[1:] if linked else ()) for segment in runs)


def test_tensors_of_another_shape_than_forward_saved_raise_with_the_name_of_the_call() -> None:
    rows = [4]
    cutting = Told(lambda own, x: x[: rows[0]].exp())
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), cutting, nn.Tanh())
    autockpt.apply(model, plan=Plan.of([["1", "2"]]), check="never")
    loss = summed(model)
    rows[0] = 2
    with pytest.raises(autockpt.ReplayError, match=r"the replay of 1#0 saved a tensor of shape \(2, 8\)"):
        loss.backward()


def test_a_call_without_gradients_in_between_is_no_mismatch() -> None:
    model: Any = Tower()
    model.blocks[1].requires_grad_(False)
    autockpt.apply(model, plan=Plan.of([["blocks.0", "blocks.1", "blocks.2"]]))
    assert said(model) == []
