"""Steps of a model, measured: what they add, what they leave, and what the first one took to compile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import autockpt
from autockpt import CompiledPlan
from tests.zoo import Case, loss_of

SEED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What three steps were.

    Attributes:
        first_bytes: what the first one added to what stood before it.
        last_bytes: what the third one added.
        left: loss, gradients, buffers and the generator's state after the third one.
        compile_seconds: seconds of the processor that the first one took longer than the third.
    """

    first_bytes: int
    last_bytes: int
    left: list[Tensor]
    compile_seconds: float


def static_bytes(case: Case) -> int:
    """Return the bytes of parameters, buffers and batch."""
    held = [*case.model.parameters(), *case.model.buffers(), *case.kwargs.values()]
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in held}.values())


def processor_seconds() -> float:
    """Return the seconds of the processor that this process took, with those of the compilers that it ran."""
    taken = os.times()
    return taken.user + taken.system + taken.children_user + taken.children_system


def trained(case: Case, compiled: Any) -> Trained:
    """Take three steps from the same seed and the same buffers.

    Args:
        case: the model and its batch.
        compiled: what runs in place of the model.
    """
    left: list[Tensor] = []

    def step() -> None:
        torch.manual_seed(SEED)
        outputs = compiled(**case.kwargs)
        loss = loss_of(outputs)
        loss.backward()
        left[:] = [loss.detach()]

    buffers = [each.clone() for each in case.model.buffers()]
    sizes, seconds = [], []
    for _ in range(3):
        case.model.zero_grad(set_to_none=True)
        left.clear()
        for own, before in zip(case.model.buffers(), buffers, strict=True):
            own.data.copy_(before)
        began = processor_seconds()
        sizes.append(autockpt.measure(step).step_bytes)
        seconds.append(processor_seconds() - began)
    left += [each.grad.clone() for each in case.model.parameters() if each.grad is not None]
    left += [each.clone() for each in case.model.buffers()]
    case.model.zero_grad(set_to_none=True)
    return Trained(
        first_bytes=sizes[0],
        last_bytes=sizes[2],
        left=[*left, torch.get_rng_state()],
        compile_seconds=seconds[0] - seconds[2],
    )


def plan_on(compiled: Any) -> CompiledPlan:
    """Return the plan that a compiled model is held to."""
    plan = autockpt.plan_of(compiled)
    assert isinstance(plan, CompiledPlan)
    return plan


def equal(left: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether two steps left the same bits."""
    return len(left) == len(expected) and all(map(torch.equal, left, expected))


def difference(one: Tensor, other: Tensor) -> float:
    """Return by how much a tensor differs from another, over the norm of that."""
    if one.shape != other.shape:
        return float("inf")
    one, other = one.double(), other.double()
    return float((one - other).norm() / other.norm().clamp_min(1e-300))
