"""What one process says of a rank among others that are not there, beside what two real ranks hold."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from torch import distributed

import autockpt

from . import foretold
from .conftest import Both

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")


SWEPT = [
    pytest.param(by, marks=pytest.mark.sweep) for by in ("ddp", "ddp views", "tp", "fsdp2 bf16", "fsdp2 kept", "sp")
]


@pytest.mark.parametrize("by", ["fsdp2", *SWEPT])
def test_a_rank_alone_foretells_what_two_real_ranks_hold(both: Both, by: str, tmp_path: Path) -> None:
    refuse_other_peaks(both, 2, by, tmp_path / "plan.json")


@pytest.mark.parametrize("by", ["fsdp2 bf16", pytest.param("fsdp2", marks=pytest.mark.sweep)])
def test_the_lowest_plan_of_a_rank_alone_is_no_percent_above_what_real_ranks_hold(
    both: Both, by: str, tmp_path: Path
) -> None:
    """It was 0.7 % above here and 2.1 % in smaller models: fake tensors had a mask for packed rows in every layer."""
    profile = autockpt.profile(partial(built, by), world_size=2, optimizer="adamw")
    plan = autockpt.solve(profile, "lowest", seconds=1)
    plan.save(path := tmp_path / "plan.json")
    for each in both("foretold.peaks", by=by, plan=str(path)):
        assert each[-1] <= plan.peak_bytes <= 1.005 * each[-1]


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # it returns a view, which nobody changes
def test_a_rank_alone_foretells_what_four_real_ranks_hold(four: Both, tmp_path: Path) -> None:
    refuse_other_peaks(four, 4, "fsdp over tp", tmp_path / "plan.json")


def built(by: str) -> object:
    return foretold.shared(by, quiet=False), foretold.batch(), lambda loss: loss


def refuse_other_peaks(world: Both, ranks: int, by: str, path: Path) -> None:
    """Refuse peaks of real ranks, plain and planned, that are not those foretold to the percent."""
    profile = autockpt.profile(partial(built, by), world_size=ranks, optimizer="adamw")
    plan = autockpt.solve(profile, (profile.plain_peak_bytes + profile.static.total_bytes) // 2, seconds=1)
    plan.save(path)
    assert plan.segments
    for each in world("foretold.peaks", by=by):
        assert abs(profile.plain_peak_bytes - each[-1]) <= 0.01 * each[-1]
    for each in world("foretold.peaks", by=by, plan=str(path)):
        assert abs(plan.peak_bytes - each[-1]) <= 0.01 * each[-1]
