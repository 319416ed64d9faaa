"""Hooks of the user's on saved tensors, around the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import autockpt
from tests.loops.models import Network, network
from tests.loops.twin import Run, held, one, steps, train


def to_numpy(tensor: Tensor) -> Any:
    return tensor.detach().numpy().copy()


def around(run: Run, hooks: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    for batch in steps():

        def work(batch: Tensor = batch) -> Tensor:
            with hooks():
                return one(run, batch)

        run.step(work, batch)


def test_hooks_of_the_users_on_saved_tensors() -> None:
    def hooks() -> contextlib.AbstractContextManager[Any]:
        return saved_tensors_hooks(to_numpy, torch.from_numpy)

    held(network, lambda run: around(run, hooks), budget=3.0, excuse="")  # plain, it holds little that torch allocated


def test_hooks_of_the_users_that_only_look() -> None:
    seen: list[int] = []

    def look(tensor: Tensor) -> Tensor:
        seen.append(tensor.numel())
        return tensor

    held(network, lambda run: around(run, lambda: saved_tensors_hooks(look, lambda tensor: tensor)))
    assert seen


def test_saving_on_the_cpu() -> None:
    held(network, lambda run: around(run, save_on_cpu), excuse="")


class Differentiating(Network):
    """Takes derivatives inside its forward from some step on, which allows no hooks on saved tensors."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def body(self, hidden: Tensor) -> Tensor:
        hidden = super().body(hidden)
        if self.forwards <= self.after:
            return hidden
        slope = torch.func.grad(lambda x: x.tanh().square().sum())(hidden)
        pulled: Any = torch.func.vjp(torch.sin, hidden)
        out: Tensor = hidden + slope + pulled[0] + pulled[1](torch.ones_like(hidden))[0]
        return out


@pytest.mark.parametrize("after", [0, 1, 2])
def test_derivatives_inside_forward_are_said_once_and_the_step_is_the_plain_one(after: int) -> None:
    found = held(lambda: Differentiating(after), train_all, planned_by=1, excuse="torch.func.grad")
    assert found.said.count("torch.func.grad") == 1


def train_all(run: Run) -> None:
    train(run, steps())


def test_hooks_of_the_users_are_still_refused_beside_derivatives() -> None:
    model = autockpt.apply(Differentiating(0), "1GB")
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor), pytest.raises(RuntimeError, match="hooks"):
        model(steps(1)[0])
    model(steps(1)[0]).sum().backward()
