"""Segments over several units of FSDP2: bit for bit the plain training, and what is gathered for them again."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import distributed

import autockpt
from autockpt import Plan, Profile, Segment
from autockpt.solvers import simulate
from tests.doors import find_planned

from .conftest import Both
from .models import Shared
from .over_units import STEPS
from .test_foretold import built

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

FSDP = Shared(by="fsdp")
BOUNDARY_BYTES = 4 * 8 * 64 * 64

BLOCKS = [[f"blocks.{number}"] for number in range(4)]
PAIRS = [["blocks.0", "blocks.1"], ["blocks.2", "blocks.3"]]
ONE = [["blocks.0", "blocks.1", "blocks.2", "blocks.3"]]
BESIDE = [["words", "blocks.0", "blocks.1"], ["blocks.2", "blocks.3", "norm"]]

WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "pairs": ({"runs": PAIRS}, 0),
    "one run": ({"runs": ONE}, 2),
    "calls beside": ({"runs": BESIDE}, 1),
    "pairs in bfloat16": ({"shared": Shared(by="fsdp", bf16=True), "runs": PAIRS}, 0),
    "one run, kept gathered": ({"shared": Shared(by="fsdp", reshard=False), "runs": ONE}, 0),
    "one run, root let go": ({"shared": Shared(by="fsdp", reshard=True), "runs": ONE}, 2),
    "one run, accumulating": ({"runs": ONE, "accumulate": 2}, 4),
    "one run, grouped": ({"shared": Shared(by="fsdp", units="grouped"), "runs": ONE}, 2),
    "one run, a part frozen": ({"shared": Shared(by="fsdp", units="frozen"), "runs": ONE}, 2),
    "one run, gloo": ({"shared": Shared(by="fsdp", quiet=False), "runs": ONE}, 2),
}
"""What is asked, and how many gathers a step has more than the plain one."""


@pytest.mark.sweep
@pytest.mark.parametrize("way", WAYS)
def test_a_replay_over_units_gathers_what_is_away(both: Both, way: str) -> None:
    """The last unit's own hooks have gathered it, and what comes before it is on its way already."""
    given, more = WAYS[way]
    found = both("over_units.by_hand", **{"shared": FSDP, **given})
    for each in found:
        assert each["runs"]["differ"] == []
        assert each["runs"]["log"] == found[0]["runs"]["log"]
        assert _gathers(each["runs"]) == _gathers(each["plain"]) + more * STEPS
        assert each["runs"]["grown"][-2:] == [0, 0] or way == "one run, gloo"


def _gathers(found: dict[str, Any]) -> int:
    return sum("gather" in each.lower() for each in found["log"])


def test_a_run_of_units_holds_the_boundary_of_the_first_alone(both: Both) -> None:
    """Units are given other tensors than those that were returned before them, of the same bytes."""
    for blocks, pairs, one in both("over_units.held", plans=[BLOCKS, PAIRS, ONE]):
        assert (blocks - pairs, blocks - one) == (2 * BOUNDARY_BYTES, 3 * BOUNDARY_BYTES)


def test_where_no_other_plan_holds_the_budget_all_ranks_recompute_units_together(both: Both) -> None:
    found = both("over_units.planned", budget=LOW_BYTES)
    for each in found:
        refuse_wrong(each, found[0], LOW_BYTES)
        assert each["more"] > 0 and any(len(calls) > 1 for calls in each["segments"])


@pytest.mark.sweep
def test_where_another_plan_holds_the_budget_nothing_is_gathered_again(both: Both) -> None:
    for each in both("over_units.planned", budget=ENOUGH_BYTES):
        refuse_wrong(each, each, ENOUGH_BYTES)
        assert each["more"] == 0


@pytest.mark.sweep
@pytest.mark.parametrize("given", [{"lengths": (64, 48)}, {"shared": Shared(by="fsdp", bf16=True)}], ids=str)
def test_ranks_that_recompute_units_together_in_other_ways(both: Both, given: dict[str, Any]) -> None:
    budget = both("over_units.planned", budget="lowest", **given)[0]["predicted"][-1] * 9 // 10
    found = both("over_units.planned", budget=budget, **given)
    for each in found:
        refuse_wrong(each, found[0], budget)
        assert each["more"] > 0


@pytest.mark.sweep
def test_a_budget_that_no_plan_holds_is_so_for_all(both: Both) -> None:
    first, second = both("over_units.planned", budget=1_400_000)
    assert first["infeasible"].splitlines()[0] == second["infeasible"].splitlines()[0]


LOW_BYTES, ENOUGH_BYTES = 2_500_000, 4_000_000


def refuse_wrong(each: dict[str, Any], first: dict[str, Any], budget: int) -> None:
    """Refuse other bits, collectives or segments than those of the first rank, and what exceeds the budget."""
    assert each["differ"] == [] and each["log"] == first["log"] and each["segments"] == first["segments"] != []
    assert max(each["peaks"]) <= budget
    assert each["peaks"][-1] <= each["predicted"][-1] <= 1.01 * each["peaks"][-1]


def test_a_rank_alone_recomputes_units_together_where_that_pays() -> None:
    """The same budgets with and without them; a plan over units is never the dearer one."""
    profile = _profile("fsdp2")
    alone = msgspec.structs.replace(profile, units=None)
    least_bytes, most_bytes = profile.static.total_bytes, profile.plain_peak_bytes
    together = 0
    for share in (0.5, 0.6, 0.7):
        budget = int(least_bytes + share * (most_bytes - least_bytes))
        plans = [autockpt.solve(each, budget, seconds=1) for each in (profile, alone)]
        costs = [sum(segment.recompute_seconds for segment in plan.segments) for plan in plans]
        assert costs[0] <= costs[1]
        together += any(len(_units(segment)) > 1 for segment in plans[0].segments)
        assert all(len(_units(segment)) <= 1 for segment in plans[1].segments)
    assert together


@pytest.mark.sweep
@pytest.mark.parametrize("by", ["fsdp2", "fsdp2 bf16", "fsdp2 kept"])
@pytest.mark.parametrize("runs", [[[0, 1], [2, 3]], [[0, 1, 2, 3]]], ids=str)
def test_a_rank_alone_foretells_what_replays_gather(both: Both, by: str, runs: list[list[int]], tmp_path: Path) -> None:
    segments = [Segment(calls=tuple(f"gpt.transformer.h.{number}#0" for number in run)) for run in runs]
    candidates = find_planned(_profile(by), Plan(segments=tuple(segments)))
    predicted = simulate(candidates.problem, range(len(segments))).peak_bytes
    Plan(segments=tuple(segments)).save(path := tmp_path / "plan.json")
    for each in both("foretold.peaks", by=by, plan=str(path)):
        assert abs(predicted - each[-1]) <= 0.001 * each[-1]


def _profile(by: str) -> Profile:
    return autockpt.profile(partial(built, by), world_size=2, optimizer="adamw")


def _units(segment: Segment) -> list[str]:
    return [call for call in segment.calls if re.fullmatch(r"gpt\.transformer\.h\.\d+#0", call)]
