"""Loops whose steps never became a plan: how often they are recorded, what is said, and what is left on."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.doors import governor_of
from tests.loops.models import Network

BATCH = torch.randn(256, 32, generator=torch.Generator().manual_seed(0))
BUDGET = "lowest"


class Yields(Network):
    """Its forward is a generator function: nothing of it has run when it returns."""

    def forward(self, batch: Tensor) -> Iterator[Tensor]:  # type: ignore[override]
        hidden = self.enter(batch)
        for block in self.blocks:
            hidden = block(hidden)
            yield hidden


class Inside(Network):
    """Runs the backward inside its forward."""

    def forward(self, batch: Tensor) -> Tensor:
        loss = super().forward(batch).square().mean()
        loss.backward()
        return loss.detach()


class Tagged(Network):
    """Is given a text that it does not read."""

    def forward(self, batch: Tensor, tag: str) -> Tensor:  # type: ignore[override]
        return super().forward(batch)


class Leaves(Network):
    """Leaves its loss at an attribute, and returns nothing."""

    def forward(self, batch: Tensor) -> None:  # type: ignore[override]
        self.loss = super().forward(batch).square().mean()


class Enclosed(Network):
    """Returns a function that makes the loss."""

    def forward(self, batch: Tensor) -> Callable[[], Tensor]:  # type: ignore[override]
        out = super().forward(batch)
        return lambda: out.square().mean()


class Loop:
    """A loop whose steps are recorded, with what was said."""

    def __init__(self, model: nn.Module, step: Callable[[nn.Module, int], None]) -> None:
        self.model, self._step, self._number = autockpt.apply(model, BUDGET), step, 0
        self.lines: list[logging.LogRecord] = []

    def run(self, steps: int, caplog: pytest.LogCaptureFixture) -> int:
        """Run steps, and return how many of them were recorded."""
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="autockpt"):
            for _ in range(steps):
                self.model.zero_grad()
                self._step(self.model, self._number)
                self._number += 1
        return sum("recording" in each.getMessage() for each in caplog.records if each.levelno == logging.INFO)


def nothing_is_left_on() -> bool:
    """Whether no profiler runs, and no hook on saved tensors and no mode is on."""
    gc.collect()
    running = torch._C._autograd._profiler_enabled()
    return not running and torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def yields(model: nn.Module, number: int) -> None:
    losses = [each.square().mean() for each in model(BATCH)]
    torch.stack(losses).sum().backward()


def by_itself(model: nn.Module, number: int) -> None:
    model(BATCH)


def looks(model: nn.Module, number: int) -> None:
    model(BATCH).detach()


@pytest.mark.parametrize(("model", "step", "most"), [(Yields, yields, 5), (Inside, by_itself, 5), (Network, looks, 17)])
def test_forwards_that_no_backward_follows_are_recorded_a_few_times_and_said_once(
    model: type[Network], step: Callable[[nn.Module, int], None], most: int, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    loop, plain = Loop(model(counting=False), step), model(counting=False)
    assert loop.run(most + 1, caplog) == most
    assert "no backward has followed the forwards" in caplog.text
    assert nothing_is_left_on()
    assert loop.run(4, caplog) == 0 and not caplog.records
    plain.load_state_dict(loop.model.state_dict())
    seen: list[list[Tensor | None]] = []
    for each in (loop.model, plain):
        each.zero_grad()
        torch.manual_seed(1)
        step(each, 0)
        seen.append([parameter.grad for parameter in each.parameters()])
    assert all(one is two is None or torch.equal(one, two) for one, two in zip(*seen, strict=True))
    assert autockpt.measure(lambda: step(loop.model, 0)).peak_bytes > 0


def test_a_step_of_a_generator_gives_way_to_a_measurement() -> None:
    loop = Loop(Yields(), yields)
    yields(loop.model, 0)
    assert autockpt.measure(lambda: yields(loop.model, 1)).peak_bytes > 0


def test_forwards_that_only_look_are_planned_once_a_backward_comes(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(
        Network(counting=False), lambda model, number: looks(model, number) if number < 20 else learns(model, number)
    )
    loop.run(20, caplog)
    assert loop.run(5, caplog) == 1
    assert autockpt.plan_of(loop.model) is not None


def learns(model: nn.Module, number: int) -> None:
    model(BATCH).square().mean().backward()


@pytest.mark.parametrize("model", [Leaves, Enclosed])
def test_a_loss_that_forward_does_not_return_is_planned(model: type[Network], caplog: pytest.LogCaptureFixture) -> None:
    def step(each: Any, number: int) -> None:
        made = each(BATCH)
        (each.loss if made is None else made()).backward()

    loop = Loop(model(counting=False), step)
    loop.run(5, caplog)
    plan = autockpt.plan_of(loop.model)
    assert plan is not None and plan.segments
    governor: Any = governor_of(loop.model)
    assert not governor._runners.stashes.holding


def named(model: nn.Module, number: int) -> None:
    model(BATCH, f"step {number}").square().mean().backward()


def in_turn(model: nn.Module, number: int) -> None:
    model(BATCH, f"task {number % 9}").square().mean().backward()


def frozen(model: nn.Module, number: int) -> None:
    for bit, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(bit == 0 or bool(number >> (bit - 1) & 1))
    learns(model, number)


@pytest.mark.parametrize(("model", "step"), [(Tagged, named), (Network, frozen)])
def test_steps_that_are_each_of_another_kind_are_recorded_sixteen_times(
    model: type[Network], step: Callable[[nn.Module, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(model(counting=False), step)
    assert loop.run(17, caplog) == 16
    assert "each step so far was of another kind" in caplog.text
    assert loop.run(4, caplog) == 0 and not caplog.records
    assert nothing_is_left_on()


def test_more_kinds_in_turn_than_are_remembered_get_plans(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(Tagged(counting=False), in_turn)
    assert loop.run(9, caplog) == 9
    assert loop.run(18, caplog) == 7
    assert loop.run(9, caplog) == 0
    assert autockpt.plan_of(loop.model) is not None


def test_a_loop_whose_backwards_are_broken_off_is_planned_by_the_seconds_of_its_recording(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Enough(Exception):
        """The loop has the gradients that it wants."""

    def stops(gradient: Tensor) -> None:
        raise Enough

    def step(model: Any, number: int) -> None:
        loss = model(BATCH).square().mean()
        hook = model.enter.bias.register_hook(stops if number else lambda gradient: None)
        with suppress(Enough):
            loss.backward()
        hook.remove()

    loop = Loop(Network(counting=False), step)
    loop.run(8, caplog)
    assert autockpt.plan_of(loop.model) is not None
