"""Saved tensors that are written to later, so that no version counts it: every step is the plain one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.toys.told import Told

WIDTH = 32

STEPS = 4
"""One recorded, one timed, two planned."""


def after_the_last_save(y: Tensor) -> Tensor:
    y.data.mul_(0.5)
    return y


def between_two_saves(y: Tensor) -> Tensor:
    y.data[3:] = 0.1
    return y * y


def through_what_was_read_before(y: Tensor) -> Tensor:
    data = y.data
    squared = y * y
    data.add_(0.1)
    return squared.exp()


def by_numpy(y: Tensor) -> Tensor:
    y.detach().numpy()[:] *= 0.5
    return y


def by_numpy_later(y: Tensor) -> Tensor:
    array = y.detach().numpy()
    squared = y * y
    found = squared.exp()
    array += 0.1
    return found


def by_another_library(y: Tensor) -> Tensor:
    alias = torch.utils.dlpack.from_dlpack(y.detach())
    squared = y * y
    alias.mul_(0.5)
    return squared


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    each.__name__: each
    for each in (
        after_the_last_save,
        between_two_saves,
        through_what_was_read_before,
        by_numpy,
        by_numpy_later,
        by_another_library,
    )
}


def writing(write: Callable[[Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    first = (Told(lambda own, x: write(torch.tanh(own.linear(x))), linear=nn.Linear(WIDTH, WIDTH)) for _ in range(3))
    return nn.Sequential(*first, *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)))


def gradients(model: nn.Module, *, in_loop: bool = False) -> list[list[Tensor]]:
    found = []
    for step in range(STEPS):
        torch.manual_seed(step)
        model.zero_grad()
        output = model(torch.randn(64, WIDTH)).exp()
        loss = output.sum()
        if in_loop:
            output.data.mul_(0.5)
        loss.backward()
        found.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    return found


def assert_plain(make: Callable[[], nn.Module], budget: str, *, in_loop: bool = False) -> nn.Module:
    plain, model = gradients(make(), in_loop=in_loop), autockpt.apply(make(), budget)
    planned = gradients(model, in_loop=in_loop)
    assert [all(map(torch.equal, *each)) for each in zip(plain, planned, strict=True)] == [True] * STEPS
    return model


@pytest.mark.parametrize("budget", ["lowest", "1GB"])
@pytest.mark.parametrize("write", WRITES)
def test_every_step_is_the_plain_one(write: str, budget: str) -> None:
    def make() -> nn.Module:
        return writing(WRITES[write])

    assert any(not torch.equal(*each) for each in zip(gradients(make())[0], gradients(writing(after))[0], strict=True))
    assert_plain(make, budget)


def after(y: Tensor) -> Tensor:
    return y


@pytest.mark.parametrize("budget", ["lowest", "1GB"])
def test_a_loop_that_writes_to_an_output_before_backward(budget: str) -> None:
    assert_plain(lambda: writing(after), budget, in_loop=True)


def test_the_call_whose_replay_would_end_too_early_is_refused_by_name() -> None:
    profile = autockpt.profile(writing(after_the_last_save), torch.randn(64, WIDTH))
    reasons = {each.call: each.reason for each in autockpt.solve(profile, "1GB").refused}
    assert [*reasons] == ["0#0", "1#0", "2#0"] and all("after that, through .data" in why for why in reasons.values())


def test_a_call_that_saves_the_tensor_again_after_the_write_is_recomputed() -> None:
    model = assert_plain(lambda: writing(between_two_saves), "lowest")
    plan = autockpt.plan_of(model)
    assert plan is not None and not plan.refused
    assert any("0#0" in segment.calls for segment in plan.segments)


def test_a_tensor_that_is_only_read_through_data_does_not_stay() -> None:
    assert_plain(lambda: writing(lambda y: y * y.data.mean()), "lowest")
