"""One step of a model, taken down to the last bit, plain and planned."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autockpt import Plan
from tests.doors import Frame, install
from tests.twin import Outcome, counting_replays, left_by

torch.set_num_threads(1)

Run = Callable[[nn.Module], Tensor]
"""Runs the model forward and returns the loss."""


def steps(model: nn.Module, run: Run, *, count: int = 2) -> Outcome:
    """Take `count` forward and backward steps with a small SGD update between them."""
    torch.manual_seed(7)
    losses: dict[str, Tensor] = {}
    for number in range(count):
        model.zero_grad()
        loss = run(model)
        loss.backward()
        losses[f"loss {number}"] = loss.detach().clone()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
    return Outcome(left_by(model) | losses)


def assert_same(model: nn.Module, plan: Plan | Sequence[Any], run: Run, *, replays: bool | None = True) -> None:
    """Assert that `plan` changes nothing but when things are computed.

    Args:
        model: left as it is; copies of it run.
        plan: a plan, or what `Plan.of` takes.
        run: forward to the loss.
        replays: whether the plan must really recompute something; None if either will do.
    """
    plain, planned = copy.deepcopy(model), copy.deepcopy(model)
    install(planned, plan if isinstance(plan, Plan) else Plan.of(plan))
    expected = steps(plain, run)
    with counting_replays() as replayed:
        found = steps(planned, run)
    assert all(loss.isfinite().all() for loss in expected.of("loss").values()), "no numbers are the same bits"
    assert expected.differences(found) == []
    assert replays is None or bool(replayed) == replays


def assert_frames_go(run: Callable[[], object]) -> None:
    """Have steps leave no frame behind, with the collector of cycles off."""
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, Frame) for each in gc.get_objects())
        for _ in range(3):
            run()
        assert sum(isinstance(each, Frame) for each in gc.get_objects()) == before
    finally:
        gc.enable()
