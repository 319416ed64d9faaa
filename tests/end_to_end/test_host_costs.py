"""What units cost the host, and what that makes of them."""

from __future__ import annotations

import copy

import msgspec
import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, Segment
from autockpt._choose.candidates import find_candidates
from autockpt._choose.candidates.planned import find_planned
from autockpt._choose.solve import segments_of
from autockpt._run.install import install
from tests.end_to_end.clocks import retimed
from tests.end_to_end.test_selective import ROWS, WIDTH, Body, selective
from tests.run.frames.comparing import steps


class OwnFunctions(nn.Module):
    """Calls two functions and two children in its own code."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(nn.functional.gelu(self.up(x)).tanh())
        return out


@pytest.mark.parametrize(("units", "seen"), [(("1.up#0",), 0), (("1#0/gelu#0",), 5), (("1.up#0", "1#0/gelu#0"), 5)])
def test_what_units_cost_the_host(units: tuple[str, ...], seen: int) -> None:
    model, batch = nn.Sequential(*(OwnFunctions() for _ in range(3))), torch.randn(ROWS, WIDTH)
    profile = autockpt.profile(model, batch)
    plan = Plan(segments=(Segment(calls=("1#0",), keep=units),))

    def seconds(**host_seconds: float) -> float:
        free = dict.fromkeys(("kept_host_seconds", "mode_host_seconds", "save_host_seconds"), 0.0)
        costs = msgspec.structs.replace(profile, **(free | host_seconds))
        return find_planned(costs, plan).problem.candidates[0].recompute_seconds

    assert seconds(kept_host_seconds=1.0) - seconds() == pytest.approx(len(units))
    # The mode meets the block, its two functions and its two children.
    assert seconds(mode_host_seconds=1.0) - seconds() == pytest.approx(seen)
    # Both linears and gelu save what they are given, tanh what it returns; whoever keeps what, all four are packed.
    assert seconds(save_host_seconds=1.0) - seconds() == pytest.approx(4)


class OwnCall(nn.Module):
    """Calls a child of four functions, and then cheap ones."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        y = self.child(x)
        out: Tensor = x + y.sin().cos().sin()
        return out


def test_a_call_is_kept_as_one_unit_where_its_functions_one_by_one_would_cost_more_than_they_save() -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(*(OwnCall() for _ in range(4))), torch.randn(ROWS, WIDTH)
    profile = autockpt.profile(model, batch)
    inside = [".child" in profile.calls[call].name for call in profile.functions.call]
    costs = msgspec.structs.replace(
        retimed(profile, [4e-4 if each else 1e-6 for each in inside]),
        replay_host_seconds=0.0,
        save_host_seconds=0.0,
        kept_host_seconds=1e-3,
        mode_host_seconds=1e-6,
    )
    found = find_candidates(costs)
    kept = [index for index in selective(found) if found.runs[index].idle.keep == ("2.child#0",)]
    assert kept

    def run(model: nn.Module) -> Tensor:
        out: Tensor = model(batch)
        return out.square().mean()

    expected = steps(copy.deepcopy(model), run)
    for index in kept:
        install(planned := copy.deepcopy(model), Plan(segments=segments_of(found, [index])))
        assert expected.differences(steps(planned, run)) == []


def test_python_between_functions_is_paid_up_to_the_one_in_which_the_replay_ends() -> None:
    """That one saves its argument and does not run. It was counted, so that nothing was left for what is between."""
    recorded = autockpt.profile(nn.Sequential(*(Body() for _ in range(3))), torch.randn(ROWS, WIDTH))
    between, inside = 1e-3, 4e-3
    profile = retimed(recorded, [between + inside] * len(recorded.functions))
    functions = msgspec.structs.replace(profile.functions, seconds=(inside,) * len(recorded.functions))
    free = {f"{cost}_host_seconds": 0.0 for cost in ("replay", "member", "save", "kept", "mode")}
    profile = msgspec.structs.replace(profile, functions=functions, **free)

    def seconds(*keep: str) -> float:
        plan = Plan(segments=(Segment(calls=("1#0",), keep=keep),))
        return find_planned(profile, plan).problem.candidates[0].recompute_seconds

    assert seconds() == pytest.approx(3 * (between + inside))  # norm, up, gelu; down ends it
    assert seconds("1.up#0") == pytest.approx(2 * (between + inside))
