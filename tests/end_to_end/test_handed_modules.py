"""A module that is handed to others: what runs in it is recomputed with them, and a plan names none of it apart."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import autockpt
from tests.toys.chains import through
from tests.toys.told import Told


def hands() -> nn.Module:
    """Hands one of its modules, which has a weight, to each of its blocks."""
    handed = Told(lambda own, x: torch.tanh(x * own.weight) + own.weight, weight=nn.Parameter(torch.randn(64) * 0.1))
    blocks = (
        Told(
            lambda own, x, handed: x + own.narrow(gelu(own.widen(handed(x)))),
            widen=nn.Linear(64, 256),
            narrow=nn.Linear(256, 64),
        )
        for _ in range(5)
    )
    layers = nn.ModuleList(blocks)
    return Told(lambda own, x: through(own.layers, x, own.handed), handed=handed, layers=layers)


def gradients(model: nn.Module, batch: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    model(batch).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.4])
def test_a_plan_for_blocks_that_are_handed_a_module_can_be_applied(share: float) -> None:
    torch.manual_seed(0)
    model, batch = hands(), torch.randn(512, 64)
    plain = gradients(model, batch)
    profile = autockpt.profile(model, (batch,), loss=lambda out: out.square().mean())
    functions = profile.functions
    dear = tuple(1e-3 if name == "tanh" else 1e-5 for name in functions.name)  # so that it would be kept
    profile = msgspec.structs.replace(profile, functions=msgspec.structs.replace(functions, seconds=dear))
    static = profile.static.total_bytes
    highest = autockpt.solve(profile, "1TB").peak_bytes
    plan = autockpt.solve(profile, int(static + share * (highest - static)))
    assert plan.segments
    autockpt.apply(model, plan=plan, check="always")
    for one, other in zip(plain, gradients(model, batch), strict=True):
        assert one is not None and other is not None and torch.equal(one, other)
