"""What is there before a step and is neither parameter, buffer nor batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.doors import StaticStorages
from tests.toys.chains import feed_forward
from tests.toys.told import Told

ROWS, WIDTH = 512, 64
BATCH = torch.randn(ROWS, WIDTH)


def table() -> nn.Module:
    """Holds a tensor as a plain attribute, as anchors and rotary tables often are."""
    made = Told(lambda own, x: x + own.inner(x + own.table), inner=feed_forward(WIDTH))
    made.table = torch.randn(ROWS, WIDTH)
    return made


def plain() -> nn.Module:
    return nn.Sequential(*(feed_forward(WIDTH),) * 4)


def check_budget(model: nn.Module, loss: Callable[[Any], Tensor], inputs: Tensor | None) -> None:
    lowest = autockpt.solve(autockpt.profile(model, BATCH, loss=loss), "lowest")
    for budget in (lowest.peak_bytes, (lowest.peak_bytes + lowest.plain_peak_bytes) // 2):
        autockpt.apply(model, budget=budget, inputs=inputs, loss=loss)

        def step() -> None:
            out = model(BATCH)
            loss(out).backward()
            del out
            model.zero_grad()

        step()
        assert autockpt.measure(step, device="cpu").peak_bytes <= budget
        autockpt.remove(model)


@pytest.mark.parametrize("inputs", [None, BATCH], ids=["first step", "inputs"])
def test_tensors_in_plain_attributes_are_counted(inputs: Tensor | None) -> None:
    model = nn.Sequential(*(table() for _ in range(6)))
    profile = autockpt.profile(model, BATCH)
    assert profile.static.other_bytes == 6 * ROWS * WIDTH * 4
    check_budget(model, torch.sum, inputs)


@pytest.mark.parametrize("inputs", [None, BATCH], ids=["first step", "inputs"])
def test_the_target_that_a_loss_closes_over_is_counted(inputs: Tensor | None) -> None:
    target = torch.randn(ROWS, WIDTH)
    loss = lambda out: nn.functional.mse_loss(out, target)  # noqa: E731
    model = plain()
    assert autockpt.profile(model, BATCH, loss=loss).static.other_bytes == target.nbytes
    check_budget(model, loss, inputs)


def test_each_storage_counts_once_and_only_what_is_no_part_of_the_model_or_batch() -> None:
    model = plain()
    model.__dict__["views"] = [BATCH[:2], model.get_parameter("0.0.weight").detach(), torch.empty(8, 8)]
    model.__dict__["again"] = {"same": model.__dict__["views"][-1][:1]}
    assert autockpt.profile(model, BATCH).static.other_bytes == 8 * 8 * 4


def test_a_step_of_fake_tensors_counts_them_too() -> None:
    assert autockpt.profile(nn.Sequential(table()), BATCH, mode="fake").static.other_bytes == ROWS * WIDTH * 4


def test_targets_that_the_loss_has_stay_real_in_a_step_of_fake_tensors() -> None:
    """A loss that saves one for backward ended the recording: its bytes were to wait in a stash, as fakes have none."""
    model, targets = nn.Linear(WIDTH, 8), torch.arange(len(BATCH)) % 8

    def loss(outputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    ran, fake = (autockpt.profile(model, BATCH, loss=loss, mode=mode) for mode in ("measured", "fake"))
    assert ran.static.other_bytes == fake.static.other_bytes == targets.nbytes
    assert ran.plain_peak_bytes == fake.plain_peak_bytes


def test_a_second_size_counts_them_once_too() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)))
    model.__dict__["table"] = torch.randn(100_000, WIDTH)
    autockpt.apply(model, budget="1GB")
    peaks = []
    for rows, steps in ((256, 3), (512, 2)):
        for _ in range(steps):
            model(BATCH[:rows]).sum().backward()
            model.zero_grad()
        plan = autockpt.plan_of(model)
        assert plan is not None
        peaks.append(plan.plain_peak_bytes)
    assert model.__dict__["table"].nbytes < peaks[0] < peaks[1] < peaks[0] + model.__dict__["table"].nbytes


def test_what_a_step_makes_is_no_buffer_where_the_address_of_one_that_went_is_used_again() -> None:
    """Now and then a save was not seen, and a plan skipped what made it: the replay ended in a `ReplayError`."""
    model = nn.BatchNorm1d(WIDTH, affine=False)
    model.num_batches_tracked = model.running_var = None
    static = StaticStorages(model, lambda _: 1)
    assert model.running_mean is not None
    view = model.running_mean[1:]
    model.running_mean = torch.zeros(WIDTH)
    assert static.has(1) and not static.has(2)
    del view
    assert not static.has(1)
