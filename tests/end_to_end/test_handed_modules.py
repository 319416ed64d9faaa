"""A module that is handed to others: what runs in it is recomputed with them, and a plan names none of it apart."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import autockpt


class Handed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.weight) + self.weight


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor, handed: nn.Module) -> Tensor:
        out: Tensor = x + self.narrow(gelu(self.widen(handed(x))))
        return out


class Hands(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.handed = Handed()
        self.layers = nn.ModuleList(Takes() for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, self.handed)
        return x


def gradients(model: nn.Module, batch: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    model(batch).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.4])
def test_a_plan_for_blocks_that_are_handed_a_module_can_be_applied(share: float) -> None:
    torch.manual_seed(0)
    model, batch = Hands(), torch.randn(512, 64)
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
