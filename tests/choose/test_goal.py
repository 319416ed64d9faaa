"""What may be asked of a plan, on a profile made by hand."""

from __future__ import annotations

import math
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autockpt
from autockpt import BudgetError, Goal, Infeasible, Plan, TooCostly
from autockpt.solvers import SOLVERS, simulate
from tests.doors import advise, find_candidates, peak_parts
from tests.hosts import host

from ..handmade import MIB, chain_profile

PROFILE = chain_profile()
PLAIN_BYTES = simulate(find_candidates(PROFILE).problem, ()).peak_bytes
any_solver = pytest.mark.parametrize("solver", sorted(SOLVERS))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "neither is given"),
        ({"budget": "8GB", "max_overhead": 0.1}, "budget='8GB' and max_overhead=0.1 are given"),
        ({"max_overhead": 0}, "a finite ratio above 0"),
        ({"max_overhead": -0.1}, "-0.1 is none"),
        ({"max_overhead": math.nan}, "nan is none"),
        ({"max_overhead": math.inf}, 'budget="lowest" asks for the lowest peak'),
        ({"max_overhead": "15%"}, "'15%' is none"),
        ({"max_overhead": True}, "True is none"),
        ({"budget": "least"}, "cannot read 'least' as a budget.*budget=\"min\" asks.*max_overhead=0.15 for"),
        ({"budget": "80%"}, "needs a device whose memory is known"),
        ({"budget": 0}, "at least one byte"),
        ({"budget": True}, "cannot read True"),
        ({"budget": 0.5}, "cannot read 0.5"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) or "nothing" if isinstance(value, dict) else "",
)
def test_nonsense_is_refused_before_anything_runs(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(BudgetError, match=words):
        autockpt.solve(PROFILE, **asked)
    with pytest.raises(BudgetError, match=words):
        chain_frontier().within(**asked)


def chain_frontier() -> autockpt.Frontier:
    plain = autockpt.solve(PROFILE, 10**12)
    return autockpt.Frontier(solver="auto", plans=(plain, autockpt.solve(PROFILE, "min")))


@any_solver
def test_the_minimum_is_what_an_impossible_budget_names(solver: str) -> None:
    with pytest.raises(Infeasible) as caught:
        autockpt.solve(PROFILE, 1, solver=solver)
    plan = autockpt.solve(PROFILE, " MIN ", solver=solver)
    assert plan.peak_bytes == plan.budget_bytes == caught.value.minimum_bytes
    assert plan.recompute_seconds <= caught.value.plan.recompute_seconds
    assert plan.goal is not None and plan.goal.is_minimum


@any_solver
@pytest.mark.parametrize("pins", [{}, {"keep": "h.0.attn", "recompute": "h.2"}], ids=["free", "pinned"])
def test_an_overhead_is_kept_or_the_least_is_told(solver: str, pins: dict[str, Any]) -> None:
    try:
        plan = autockpt.solve(PROFILE, max_overhead=0.05, solver=solver, **pins)
    except TooCostly as error:
        assert solver in ("all", "always", "uniform")
        assert error.plan.recompute_overhead > 0.05
        assert f"{error.plan.recompute_overhead:.2%}" in str(error)
        assert bool(error.pins) == bool(pins)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        plan = autockpt.solve(PROFILE, max_overhead=error.plan.recompute_overhead, solver=solver, **pins)
        assert plan.recompute_overhead <= error.plan.recompute_overhead
        return
    assert plan.recompute_overhead <= 0.05
    assert plan.peak_bytes == plan.budget_bytes
    assert plan.peak_bytes <= PLAIN_BYTES
    assert plan.goal == Goal(max_overhead=0.05)
    if solver in ("auto", "ilp"):
        below = autockpt.solve(PROFILE, plan.peak_bytes - 1, solver=solver, **pins)
        assert below.recompute_overhead > 0.05


def test_pins_alone_can_cost_too_much() -> None:
    with pytest.raises(
        TooCostly, match=r"with the pins recompute=\('h\.0', 'h\.2', 'h\.3'\) has 12\.50%.*take pins away\.$"
    ):
        autockpt.solve(PROFILE, max_overhead=0.01, recompute=["h.0", "h.2", "h.3"])


def test_an_overhead_needs_seconds() -> None:
    still = msgspec.structs.replace(PROFILE, plain_seconds=0.0)
    with pytest.raises(BudgetError, match="the profile has none"):
        autockpt.solve(still, max_overhead=0.1)


def test_more_budget_never_costs_more() -> None:
    """Through the public function, by the default solver, from below the minimum to above the plain peak."""
    profile, costs = chain_profile(5), []
    plain = autockpt.solve(profile, 10**12).peak_bytes
    with host(replay_seconds=0.003):
        for budget in range(autockpt.solve(profile, "min").peak_bytes, plain + 8 * MIB, 8 * MIB):
            plan = autockpt.solve(profile, budget)
            assert plan.peak_bytes <= budget
            costs.append(plan.recompute_seconds)
    assert len(set(costs)) > 4
    assert all(more <= less for less, more in pairwise(costs))
    assert costs[-1] == 0.0


def test_what_was_asked_is_told_and_kept(tmp_path: Path) -> None:
    asked = [
        ({"budget": "50%", "total_bytes": 160 * MIB}, "80.00 MiB  50% of the 160.00 MiB of memory"),
        ({"budget": "min"}, "min  the lowest peak at one level"),
        ({"budget": "lowest"}, "lowest  the lowest peak"),
        ({"max_overhead": 0.055}, "5.5%  the lowest peak within a recompute overhead of 0.055"),
    ]
    for options, words in asked:
        plan = autockpt.solve(PROFILE, **options)  # type: ignore[arg-type]
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan
        assert words in plan.explain()
    assert "of the" not in autockpt.solve(PROFILE, "80MiB").explain().split("predicted peak")[0]


def test_a_frontier_answers_the_same_questions() -> None:
    found = chain_frontier()
    assert found.within("min") is found.plans[-1]
    with pytest.raises(autockpt.BudgetError, match="a frontier has no such plans"):
        found.within("lowest")
    assert found.within(max_overhead=1e-9) is found.plans[0]
    assert found.within(max_overhead=found.plans[-1].recompute_overhead) is found.plans[-1]


@settings(max_examples=20)
@given(st.integers(1, 60), st.sampled_from(["articulation", "sqrt", "auto"]))
def test_infeasible_says_what_the_minimum_consists_of(budget_mib: int, solver: str) -> None:
    try:
        autockpt.solve(PROFILE, budget_mib * MIB, solver=solver)
    except Infeasible as error:
        parts = error.parts
        assert parts.peak_bytes == error.minimum_bytes == error.plan.peak_bytes
        assert parts.parameter_bytes == 4 * MIB and parts.input_bytes == MIB
        assert parts.step in error.dominated_by
        assert f"{parts.shares()}, in the {parts.step}" in str(error)
        assert all(line in str(error) for line in error.advice[1:3])
        assert str(error).count("\n") <= 5
        told = " ".join(error.advice)
        assert ("parameters alone" in told) == (budget_mib < 4)
        assert ("'auto' may get lower" in told) == (solver != "auto" and budget_mib >= 4)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.parts, again.advice) == (str(error), parts, error.advice)
    else:
        assert budget_mib * MIB >= autockpt.solve(PROFILE, "min", solver=solver).peak_bytes


def test_what_else_is_alive_is_a_part_of_the_peak() -> None:
    static = msgspec.structs.replace(PROFILE.static, other_bytes=MIB)
    with pytest.raises(Infeasible) as caught:
        autockpt.solve(msgspec.structs.replace(PROFILE, static=static), 1)
    assert "what else is alive 1.00 MiB" in str(caught.value.parts)
    assert caught.value.parts.peak_bytes == caught.value.minimum_bytes


def advice(
    budget_mib: int, *, minimum_mib: int, unpinned_mib: int | None = None, phase: str = "backward", **sizes: int
) -> str:
    """What is advised where the peak consists of these parts, in MiB."""
    found = find_candidates(PROFILE)
    nothing = {name: 0 for name in autockpt.PeakParts.__struct_fields__ if name.endswith("_bytes")}
    given = {f"{name}_bytes": size * MIB for name, size in sizes.items()}
    parts = msgspec.structs.replace(peak_parts(found, ()), phase=phase, **nothing | given)
    assert parts.peak_bytes == minimum_mib * MIB
    unpinned_bytes = None if unpinned_mib is None else unpinned_mib * MIB
    return " ".join(advise(parts, budget_mib * MIB, unpinned_bytes=unpinned_bytes))


def test_advice_follows_from_the_figures() -> None:
    """Levers are named where they are long enough, and by how much they have to move."""
    text = advice(60, minimum_mib=100, parameter=20, optimizer=50, activation=30)
    assert "above the budget of 60.00 MiB: no batch fits" in text  # 70 stand before the batch comes
    assert "with a state of at most 10.00 MiB it fits" in text
    assert "smaller batch" not in text
    text = advice(60, minimum_mib=100, parameter=20, activation=50, boundary=30)
    assert "80.00 MiB of the peak grow with them, so about 50 % of these inputs fit" in text
    assert "optimizer" not in text
    text = advice(30, minimum_mib=100, parameter=20, gradient=40, optimizer=5, transient=35)
    assert "A smaller batch alone does not help" in text
    assert "An optimizer without state would spare 7% of the 70.00 MiB missing" in text
    text = advice(60, minimum_mib=100, parameter=20, gradient=20, transient=60, phase="optimizer")
    assert "the optimizer's own step, which no plan changes: its temporaries are 60.00 MiB" in text
    assert "A smaller batch alone does not help: 0 B of the peak" in text
    assert "Lift pins: without them the same solver fits" in advice(
        60, minimum_mib=100, unpinned_mib=60, parameter=20, output=80
    )
    assert "those that the caller holds are 80.00 MiB" in advice(60, minimum_mib=100, parameter=20, output=80)
    assert advice(60, minimum_mib=100, unpinned_mib=100, parameter=20, restored=80).count("pins") == 0


def test_a_share_of_a_cpu_is_one_of_the_physical_memory() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(3)))
    batch = torch.randn(64, 8)
    autockpt.apply(model, budget="80%", inputs=batch)
    plan = autockpt.plan_of(model)
    assert plan is not None
    physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert plan.budget_bytes == physical_bytes * 8 // 10
    assert "GiB of physical memory" in plan.explain()
    autockpt.apply(model, budget="min", inputs=batch)
    lowest = autockpt.plan_of(model)
    assert lowest is not None and lowest.segments
    found = autockpt.verify(model, batch, max_overhead=lowest.recompute_overhead * 2)
    assert found.exact
    several: list[dict[str, Any]] = [{"budget": "1GB", "plan": lowest}, {"max_overhead": 0.1, "plan": lowest}, {}]
    for wrong in several:
        with pytest.raises(BudgetError, match="only one of them"):
            autockpt.apply(model, inputs=batch, **wrong)
    with pytest.raises(BudgetError, match="only one of them"):
        autockpt.verify(model, batch, budget="1GB", max_overhead=0.1)
    assert autockpt.plan_of(model) == lowest
