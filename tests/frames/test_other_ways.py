"""A forward whose data take it another way than the recorded step: what the plan skips may be needed then."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan
from tests.doors import install
from tests.frames.models import WIDTH, batch
from tests.frames.test_units import Stack, plan


class Masked(nn.Module):
    """Leaves a mask out where it would hide nothing, as transformers' models do with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        seen = nn.functional.hardtanh(x.detach() + 1e3, 0.0, 1.0)
        if torch.all(seen):
            out: Tensor = self.second(self.first(x).tanh())
        else:
            out = self.second((self.first(x) * seen).tanh())
        return out


SKIPS = plan(["blocks.1"], ["blocks.1/all"], ["blocks.1/hardtanh"])
"""Right for a step in which nothing is hidden."""


def gradients(model: nn.Module, shifts: list[float]) -> list[Tensor]:
    """Those of a step for each number that is added to the batch of the second block."""
    found = []
    for shift in shifts:
        torch.manual_seed(1)
        model.zero_grad()
        handle = model.get_submodule("blocks.1").register_forward_pre_hook(lambda _, args, by=shift: (args[0] + by,))
        model(batch(4, WIDTH)).square().sum().backward()
        handle.remove()
        found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return found


@pytest.mark.parametrize(
    "shifts", [[0.0] * 3, [0.0, -1e3, 0.0], [-1e3, 0.0, -1e3]], ids=["as recorded", "later", "in the rehearsal"]
)
def test_what_the_plan_skips_runs_where_the_data_need_it(shifts: list[float], caplog: pytest.LogCaptureFixture) -> None:
    model = Stack(Masked)
    plain = gradients(model, shifts)
    install(model, SKIPS, "sampled")
    assert all(map(torch.equal, gradients(model, shifts), plain))
    assert caplog.messages == []
    install(model, Plan())
