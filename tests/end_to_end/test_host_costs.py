"""What units cost the host, and what that makes of them."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

import autockpt
from autockpt import Plan, Segment
from tests.doors import find_planned
from tests.end_to_end.clocks import retimed
from tests.end_to_end.test_selective import ROWS, WIDTH
from tests.hosts import IDLE_HOST, host
from tests.toys.chains import Residual
from tests.toys.told import Told


def own_functions() -> nn.Module:
    """Calls two functions and two children in its own code."""
    up, down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return Told(lambda own, x: own.down(nn.functional.gelu(own.up(x)).tanh()), up=up, down=down)


LINEAR, GELU = "1.up#0/linear#0", "1#0/gelu#0"


@pytest.mark.parametrize(("units", "seen"), [((LINEAR,), 2), ((GELU,), 5), ((LINEAR, GELU), 7)])
def test_what_units_cost_the_host(units: tuple[str, ...], seen: int) -> None:
    model, batch = nn.Sequential(*(own_functions() for _ in range(3))), torch.randn(ROWS, WIDTH)
    profile = autockpt.profile(model, batch)
    plan = Plan(segments=(Segment(calls=("1#0",), keep=units),))

    def seconds(**host_seconds: float) -> float:
        with host(**host_seconds):
            return find_planned(profile, plan).problem.candidates[0].recompute_seconds

    assert seconds(kept_seconds=1.0) - seconds() == pytest.approx(len(units))
    # The mode meets the block, its two functions and its two children; the projection and its one function.
    assert seconds(mode_seconds=1.0) - seconds() == pytest.approx(seen)
    # Both linears and gelu save what they are given, tanh what it returns; whoever keeps what, all four are packed.
    assert seconds(save_seconds=1.0) - seconds() == pytest.approx(4)


def test_python_between_functions_is_paid_up_to_the_one_in_which_the_replay_ends() -> None:
    """That one saves its argument and does not run. It was counted, so that nothing was left for what is between."""
    recorded = autockpt.profile(nn.Sequential(*(Residual(WIDTH) for _ in range(3))), torch.randn(ROWS, WIDTH))
    between, inside = 1e-3, 4e-3
    profile = retimed(recorded, [between + inside] * len(recorded.functions))
    functions = msgspec.structs.replace(profile.functions, seconds=(inside,) * len(recorded.functions))
    profile = msgspec.structs.replace(profile, functions=functions, device=IDLE_HOST)

    def seconds(*keep: str) -> float:
        plan = Plan(segments=(Segment(calls=("1#0",), keep=keep),))
        return find_planned(profile, plan).problem.candidates[0].recompute_seconds

    assert seconds() == pytest.approx(3 * (between + inside))  # norm, up, gelu; down ends it
    assert seconds("1.up#0") == pytest.approx(2 * (between + inside))
