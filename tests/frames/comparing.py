"""One step of a model, taken down to the last bit, plain and planned."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from autockpt import Plan
from tests.doors import Frame, install

torch.set_num_threads(1)

Run = Callable[[nn.Module], Tensor]
"""Runs the model forward and returns the loss."""


@dataclass
class Outcome:
    """Everything a training step leaves behind."""

    losses: list[Tensor]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    generator: Tensor

    def differences(self, other: Outcome) -> list[str]:
        found = [
            f"loss {i}" for i, (a, b) in enumerate(zip(self.losses, other.losses, strict=True)) if not _equal(a, b)
        ]
        for kind in ("gradients", "buffers"):
            mine, theirs = getattr(self, kind), getattr(other, kind)
            assert mine.keys() == theirs.keys()
            found += [f"{kind}: {name}" for name in mine if not _equal(mine[name], theirs[name])]
        return found + ([] if _equal(self.generator, other.generator) else ["generator"])


def steps(model: nn.Module, run: Run, *, count: int = 2) -> Outcome:
    """Take `count` forward and backward steps with a small SGD update between them."""
    torch.manual_seed(7)
    losses = []
    for _ in range(count):
        model.zero_grad()
        loss = run(model)
        loss.backward()
        losses.append(loss.detach().clone())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return Outcome(losses, gradients, dict(model.named_buffers()), torch.get_rng_state())


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
    with counted_replays() as count:
        found = steps(planned, run)
    assert expected.differences(found) == []
    assert replays is None or bool(count()) == replays


@contextlib.contextmanager
def counted_replays() -> Iterator[Callable[[], int]]:
    """Count the replays of frames; yields a function that returns how many there were."""
    with mock.patch.object(Frame, "replay", autospec=True, side_effect=Frame.replay) as replay:
        yield lambda: replay.call_count


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.layout != torch.strided and a.layout == b.layout:
        a, b = a.to_dense(), b.to_dense()
    return a.dtype == b.dtype and torch.equal(a, b)
