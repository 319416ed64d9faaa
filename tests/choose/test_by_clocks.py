"""Choosing by two clocks: what a plan says is what its step is simulated to take, and CPUs have one clock."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

import autockpt
from autockpt import Plan, Profile
from autockpt.solvers import simulate
from autockpt.solvers import solve as solve_problem
from benchmarks.two_clocks import fit
from tests.doors import IDLE_HOST, Candidates, find_candidates, find_planned, paces_of, plan_page, whole_blocks

SECONDS = 0.3
FOLDER = Path(fit.__file__).parent
PACED_BY = {"device": "llama-1b", "host": "llama-100m"}
"""Who sets the pace of which step."""


@functools.cache
def step(paced_by: str) -> Profile:
    return Profile.load(FOLDER / f"{PACED_BY[paced_by]}.json.gz")


@functools.cache
def candidates(paced_by: str) -> Candidates:
    return find_candidates(step(paced_by))


def time_for(solver: str) -> float:
    """Return seconds to search for. An instant solver takes what it takes: less leaves out candidates under load."""
    return SECONDS if solver == "auto" else 30.0


def budget(profile: Profile, share: float) -> int:
    static = profile.static.total_bytes
    return int(static + share * (profile.plain_peak_bytes - static))


def simulated(found: Candidates, chosen: Iterable[int]) -> float:
    clocks, plain = found.clocks(chosen), found.clocks(())
    assert clocks is not None and plain is not None
    return clocks.step_seconds - plain.step_seconds


@pytest.mark.parametrize("device", ["cpu", IDLE_HOST])
def test_a_step_with_one_clock_is_solved_as_the_problem_says(device: str) -> None:
    """Bit for bit what the solver makes of the candidates, whose prices are the judge's."""
    profile = msgspec.structs.replace(step("host"), mode="measured", device=device)
    found = find_candidates(profile)
    assert paces_of(profile) is None and found.priced(0.1) is found and found.clocks(()) is None
    assert found.plain_seconds == profile.plain_seconds
    plan = autockpt.solve(profile, budget(profile, 0.6), solver="uniform")
    chosen = solve_problem(found.problem, budget(profile, 0.6), solver="uniform")
    segments = tuple(found.replays[i].segment for i in chosen.chosen)
    assert plan.segments == segments and plan.host_pace_seconds is None
    assert plan.recompute_seconds == simulate(found.problem, chosen.chosen).recompute_seconds
    assert plan.plain_seconds == profile.plain_seconds


@pytest.mark.parametrize("paced_by", PACED_BY)
@pytest.mark.parametrize("solver", ["auto", "uniform", "none"])
def test_a_plan_says_what_its_step_is_simulated_to_take(paced_by: str, solver: str) -> None:
    profile = step(paced_by)
    asked = profile.plain_peak_bytes if solver == "none" else budget(profile, 0.6)
    plan = autockpt.solve(profile, asked, solver=solver, seconds=time_for(solver))
    planned = find_planned(profile, plan)
    clocks, plain = planned.clocks(range(len(planned.replays))), planned.clocks(())
    assert clocks is not None and plain is not None
    assert plan.plain_seconds == plain.step_seconds
    assert plan.plain_seconds + plan.recompute_seconds == pytest.approx(clocks.step_seconds)
    assert plan.host_pace_seconds == pytest.approx(clocks.host_pace_seconds)
    assert clocks.is_paced_by_host == (paced_by == "host")


@pytest.mark.parametrize("paced_by", PACED_BY)
def test_no_plan_is_slower_than_every_block(paced_by: str) -> None:
    profile = step(paced_by)
    (blocks,) = whole_blocks(candidates(paced_by))
    for budget_bytes in (blocks.peak_bytes, blocks.peak_bytes * 5 // 4):
        plan = autockpt.solve(profile, budget_bytes, seconds=SECONDS)
        assert plan.peak_bytes <= budget_bytes and plan.recompute_seconds <= blocks.recompute_seconds
    lowest = autockpt.solve(profile, "lowest", seconds=SECONDS)
    assert (lowest.peak_bytes, lowest.recompute_seconds) <= (blocks.peak_bytes, blocks.recompute_seconds)


@pytest.mark.parametrize("paced_by", PACED_BY)
@pytest.mark.parametrize("solver", ["auto", "block"])
def test_an_overhead_is_one_of_the_simulated_step(paced_by: str, solver: str) -> None:
    plan = autockpt.solve(step(paced_by), max_overhead=0.1, solver=solver, seconds=time_for(solver))
    assert 0 < plan.recompute_overhead <= 0.1 and plan.peak_bytes < plan.plain_peak_bytes


@pytest.mark.parametrize("share", [0.02, 0.1, 1.0])
def test_prices(share: float) -> None:
    """At the whole of the host's seconds no plan is dearer than its price."""
    found = candidates("device")
    dear, cheap = found.priced(1.0).problem.candidates, found.priced(share).problem.candidates
    assert all(less.recompute_seconds <= more.recompute_seconds for less, more in zip(cheap, dear, strict=True))
    chosen = [next(whole_blocks(found)).chosen]
    chosen += [(number,) for number in range(0, len(dear), 97)]
    for each in chosen:
        solution = simulate(found.priced(1.0).problem, each)
        assert simulated(found, each) <= solution.recompute_seconds * (1 + 1e-9)


@pytest.mark.parametrize("slowdown", [1e-3, None, 1e3])
def test_measured_steps_are_as_long_as_they_were(slowdown: float | None) -> None:
    """However slow or fast the host is said to be: the step was measured with it."""
    profile = msgspec.structs.replace(step("device"), mode="measured", device="NVIDIA Test", host_slowdown=slowdown)
    plain = find_planned(profile, Plan()).clocks(())
    assert plain is not None and plain.step_seconds == pytest.approx(profile.plain_seconds, rel=0.2)
    plan = autockpt.solve(profile, budget(profile, 0.6), solver="uniform")
    assert plan.plain_seconds == profile.plain_seconds
    assert 0 < plan.recompute_seconds < math.inf


def test_ranks_have_the_device_alone() -> None:
    profile = msgspec.structs.replace(step("host"), units=())
    assert paces_of(profile) is None
    plan = autockpt.solve(profile, budget(profile, 0.6), solver="uniform")
    assert plan.host_pace_seconds is None
    assert "the device's alone: ranks wait for each other" in plan.explain(profile)


def test_moves_have_the_device_alone() -> None:
    profile = step("host")
    plan = autockpt.solve(profile, budget(profile, 0.6), offload="host", seconds=SECONDS)
    assert plan.host_pace_seconds is None
    assert "the device's alone: other streams may copy beside it" in plan.explain(profile)


@pytest.mark.parametrize("paced_by", PACED_BY)
def test_pages_say_who_sets_the_pace(paced_by: str) -> None:
    profile = step(paced_by)
    plan = autockpt.solve(profile, budget(profile, 0.6), solver="uniform")
    said = f"the {paced_by} sets the pace: "
    assert said in " ".join(plan_page(plan).text().split())
    by_hand = Plan.of([segment.calls for segment in plan.segments[:1]])
    assert said in " ".join(by_hand.explain(profile).split())
    frontier = autockpt.frontier(profile, points=3, solver="uniform")
    assert said in " ".join(frontier.explain().split())


def test_a_frontier_is_one_of_simulated_steps() -> None:
    profile = step("host")
    for plan in autockpt.frontier(profile, points=4, seconds=2.0).plans:
        planned = find_planned(profile, plan)
        assert plan.recompute_seconds == pytest.approx(simulated(planned, range(len(planned.replays))))
