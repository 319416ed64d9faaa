"""Tensors of a device that wait in the host's memory."""

from __future__ import annotations

from typing import Literal

import pytest
from torch import nn

import autockpt
from autockpt import NotApplicable, Offload, Plan, Segment
from tests.device.test_budget import hold
from tests.device.twin import blocks, outcome, plain_and_planned

HOST = Offload(where="host", write_rate=25e9, read_rate=25e9)


@pytest.mark.parametrize("rate", ["", "@1000GB/s"], ids=["measured", "fast"])
def test_a_budget_is_kept_with_the_host(rate: str) -> None:
    found = plain_and_planned(
        lambda: blocks(8), apply=lambda run, budget: autockpt.apply(run.model, budget, offload=f"host{rate}")
    )
    hold(found)
    assert found.plan is not None
    moved = [segment for segment in found.plan.segments if segment.offload]
    assert moved if rate else found.plan.offload is None or found.plan.offload.measured


@pytest.mark.parametrize("kind", ["saved", "boundary"])
def test_a_plan_that_moves_is_the_plain_step(kind: Literal["saved", "boundary"]) -> None:
    names = [name for name, _ in blocks(4)[0].named_children()]
    plan = Plan(segments=tuple(Segment(calls=(f"{name}#0",), offload=kind) for name in names[:-1]), offload=HOST)
    found = plain_and_planned(lambda: blocks(4), apply=lambda run, budget: autockpt.apply(run.model, plan=plan))
    assert outcome(found) == [True] * len(found.plain.left)
    assert max(found.planned.peaks[2:]) < max(found.plain.peaks[2:])


def test_a_folder_takes_no_tensors_of_a_device() -> None:
    with pytest.raises(NotApplicable, match="offload='host'"):
        autockpt.apply(nn.Linear(4, 4).to("cuda"), "1MB", offload="/tmp")
