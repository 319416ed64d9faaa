"""Mixtures of experts: which expert takes which token is chosen by value, and a replay must choose the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, batch
from tests.hazards.devices import DEVICES

EXPERTS = 4


class Mixture(nn.Module):
    """Sends every token to the experts that its scores choose."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(EXPERTS))
        self.how = how
        self.disturb = [0.0]

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(x).softmax(-1)
        if autockpt.is_recomputing() and self.disturb[0]:
            scores = scores.roll(1, -1) if self.disturb[0] == 1 else 1 - scores  # as if kernels summed in another order
        if self.how == "topk":
            weights, chosen = scores.topk(2, -1)
        elif self.how == "argmax":
            chosen = scores.argmax(-1, keepdim=True)
            weights = scores.gather(-1, chosen)
        elif self.how == "sort":
            weights, chosen = (part[:, :2] for part in scores.sort(-1, descending=True))
        else:
            chosen = torch.multinomial(scores.detach(), 2)
            weights = scores.gather(-1, chosen)
        return weights, chosen

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.choose(x)
        torch.bincount(chosen.flatten(), minlength=EXPERTS)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.nonzero(chosen == number, as_tuple=True)
            out = out.index_add(0, token, expert(x[token]) * weights[token, slot, None])
        return out


def mixtures(module: nn.Sequential) -> list[Mixture]:
    return [layer for layer in module if isinstance(layer, Mixture)]


def model(how: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Mixture(how), Mixture(how), nn.Linear(WIDTH, 1))


def loss(module: nn.Module) -> Tensor:
    device = next(module.parameters()).device
    out: Tensor = module(batch(32, WIDTH).sin().mul(9).to(device)).square().sum()
    return out


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("plan", [["1", "2"], [["0", "1", "2"]], ["1.router", "1.experts.0", "1.experts.3"]], ids=str)
@pytest.mark.parametrize("how", ["topk", "argmax", "sort", "multinomial"])
def test_tokens_go_to_the_same_experts_again(how: str, plan: Any, device: str) -> None:
    assert_same(model(how).to(device), plan, loss)


@pytest.mark.parametrize("disturb", [1, 2])
@pytest.mark.parametrize("how", ["topk", "argmax", "sort"])
def test_routing_that_comes_out_differently_raises_and_names_the_call(how: str, disturb: int) -> None:
    module = model(how)
    autockpt.apply(module, plan=Plan.of([["1", "2"]]), check="never")
    total = loss(module)
    for mixture in mixtures(module):
        mixture.disturb[0] = disturb
    with pytest.raises(autockpt.ReplayError, match="the replay of 1#0 saved"):
        total.backward()


def test_with_the_router_outside_routing_is_not_repeated_at_all() -> None:
    """Where kernels cannot be made to repeat themselves: keep the router, recompute the experts."""
    plain, planned = model("topk"), model("topk")
    plan = Plan.of([f"{layer}.experts.{number}" for layer in (1, 2) for number in range(EXPERTS)])
    autockpt.apply(planned, plan=plan)
    for mixture in mixtures(planned):
        mixture.disturb[0] = 2
    assert steps(plain, loss).differences(steps(planned, loss)) == []
