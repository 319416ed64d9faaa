"""Training below one level of recomputing: bit for bit, from the first step on, and within what was predicted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

import autockpt
from tests.choose.test_inside import deep
from tests.choose.test_parts import chain
from tests.rows import crossed
from tests.twin import digest, listening

STEPS = 5


def trained(model: nn.Module) -> tuple[list[str], int]:
    """Train some steps; return what is left of the weights, and the peak of one more."""
    torch.manual_seed(3)
    batch, optimizer = torch.randn(1024, 16), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(STEPS):
        step()
    left = [digest(parameter) for parameter in model.parameters()]
    return left, autockpt.measure(step, device="cpu").peak_bytes


def inside(*, normed: bool) -> nn.Module:
    return deep(5, normed=normed)  # with all eight, planning takes most of the time


@functools.cache
def plainly(build: Callable[..., nn.Module], normed: bool) -> tuple[list[str], int]:
    """What is left without a plan, and the peak: the same however plans are checked."""
    return trained(build(normed=normed))


@crossed(
    build={"in parts": chain, "inside": inside},
    normed={"": False, "statistics": True},
    check=["sampled", "always", "never"],
)
def test_a_training_below_one_level(
    build: Callable[..., nn.Module], check: Literal["sampled", "always", "never"], normed: bool
) -> None:
    expected, plain_bytes = plainly(build, normed)
    budget: str | int = "lowest"
    for _ in range(2):
        model = autockpt.apply(build(normed=normed), budget, check=check)
        with listening() as said:
            found, peak_bytes = trained(model)
        plan = autockpt.plan_of(model)
        assert plan is not None and any(segment.inner if build is inside else segment.cuts for segment in plan.segments)
        assert found == expected and said == []
        assert plan.peak_bytes <= peak_bytes < 0.5 * plain_bytes
        assert peak_bytes <= plan.peak_bytes * 1.001
        budget = int(1.1 * plan.peak_bytes)  # which one level does not reach
