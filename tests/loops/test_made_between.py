"""What a loop makes before the step of a model, while the last step was another's, or a frozen model has run since."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.loops.models import Network, deep, loss_of
from tests.loops.test_several import frozen
from tests.loops.twin import Run, held, steps

PHOTOS = 48


def photos(batch: Tensor) -> Tensor:
    """What is large before the critic gets a mean of it."""
    return batch.unsqueeze(-1).repeat(1, 1, PHOTOS) + torch.randn(PHOTOS)


def turns(run: Run, *, goes: bool) -> None:
    """The critic learns from photos; then the maker steps, while they are there or when they have gone."""
    models: Any = run.model
    run.settled = 6

    def step(batch: Tensor) -> Tensor:
        large = photos(batch)
        loss = loss_of(models["critic"](large.mean(-1)))
        loss.backward()
        run.update()
        large = large[:0].clone() if goes else large
        made = loss_of(models["maker"](batch))
        made.backward()
        run.update()
        total: Tensor = loss.detach() + made.detach() + large.numel()
        return total

    for batch in steps(10):
        run.step(partial(step, batch), batch)


def two() -> nn.Module:
    return nn.ModuleDict({"critic": deep(), "maker": Network(4)})


def test_what_is_made_for_one_step_counts_in_that_and_not_in_the_one_before() -> None:
    """Photos were counted in the maker's step, which ends as they are made, and in none of the critic's."""
    held(two, partial(turns, goes=True), budget=0.75, planned_by=6)


def test_what_is_made_for_one_step_and_stays_counts_in_the_next_as_well() -> None:
    held(two, partial(turns, goes=False), budget=0.75, planned_by=6)


def test_what_a_frozen_model_makes_before_the_step_counts() -> None:
    """The recording of a step ended as a teacher ran, and its hidden states were in no plan."""

    def loop(run: Run) -> None:
        models: Any = run.model

        def step(batch: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = models["teacher"](batch).repeat(1, 128).softmax(-1)
            got = models["student"](batch)
            loss = nn.functional.mse_loss(got, wanted.reshape(len(batch), 128, -1).mean(1))
            loss.backward()
            run.update()
            total: Tensor = loss.detach() + wanted[0, 0]
            return total

        for batch in steps():
            run.step(partial(step, batch), batch)

    held(lambda: nn.ModuleDict({"teacher": frozen(), "student": deep()}), loop, budget=0.75)


def test_a_graph_that_goes_at_once_does_not_end_the_planning() -> None:
    """`maker(noise).detach()` before the critic learns: after four such forwards the models trained without a plan."""

    def loop(run: Run) -> None:
        models: Any = run.model
        run.settled = 6

        def step(batch: Tensor) -> Tensor:
            made = models["maker"](batch).detach().repeat(1, 4)
            loss = loss_of(models["critic"](made))
            loss.backward()
            run.update()
            return loss

        for batch in steps(10):
            run.step(partial(step, batch))  # held by this loop from the start, and in no plan

    held(lambda: nn.ModuleDict({"maker": Network(3), "critic": deep()}), loop, budget=0.75, planned_by=6)
