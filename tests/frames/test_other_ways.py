"""A forward whose data take it another way than the recorded step: what the plan skips may be needed then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan
from tests.doors import install
from tests.frames.models import WIDTH, batch
from tests.frames.test_units import plan, stack
from tests.toys.told import Told, with_linear


def masked(own: Told, x: Tensor) -> Any:
    """Leaves a mask out where it would hide nothing, as transformers' models do with padding."""
    seen = nn.functional.hardtanh(x.detach() + 1e3, 0.0, 1.0)
    out = own.linear(x) if torch.all(seen) else own.linear(x) * seen
    return own.dropout(out.tanh())


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
    model = stack(lambda: with_linear(masked, dropout=nn.Dropout(0.2)))
    plain = gradients(model, shifts)
    install(model, SKIPS, "sampled")
    assert all(map(torch.equal, gradients(model, shifts), plain))
    assert caplog.messages == []
    install(model, Plan())


def gated(own: Told, x: Tensor) -> Any:
    """Multiplies by a gate that learns only where the data say so. Only then the product saves the mask."""
    mask = nn.functional.hardtanh(x.detach(), 0.1, 1.0)
    gate = own.linear(x)
    return own.dropout((x + torch.mul(mask, gate if torch.any(x < -1e2) else gate.detach())).tanh())


@pytest.mark.parametrize("check", ["never", "sampled", "always"])
def test_what_the_plan_skips_runs_where_a_kept_function_saves_it_now(check: Any) -> None:
    """Attention whose dropout ended took another kernel, which saved more than the first one, and backward failed."""
    model, shifts = stack(lambda: with_linear(gated, dropout=nn.Dropout(0.2))), [0.0, 0.0, -1e3, 0.0, -1e3]
    plain = gradients(model, shifts)
    install(model, plan(["blocks.1"], ["blocks.1/any", "blocks.1/mul"], ["blocks.1/hardtanh"]), check)
    assert all(map(torch.equal, gradients(model, shifts), plain))
    install(model, Plan())
