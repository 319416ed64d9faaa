"""HiGHS that crashes or lies: the judge rejects what it says, the best plan until then is returned and tells it."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pulp
import pytest
from hypothesis import given, settings

from autockpt.solvers import (
    BackendError,
    Dataflow,
    Infeasible,
    Lives,
    Problem,
    Solution,
    Status,
    peak_bound,
    simulate,
    solve,
    sweep,
)
from autockpt.solvers.judge import Judge
from autockpt.solvers.plans.instant import Instants
from tests.dataflow.test_bound import TOLERANCE, cheapest_schedule, models

from .exhaustive import optimum, outcome
from .strategies import problems_and_budgets
from .synthetic import transformer

PLENTY = 60.0

Fake = Callable[[Any, Any], Any]
"""Solves a problem in place of PuLP's `HiGHS.actualSolve`."""

HONEST: Fake = pulp.HiGHS.actualSolve


def crashes(solver: Any, lp: Any) -> Any:
    raise RuntimeError("the licence\nhas expired")


def is_missing(solver: Any, lp: Any) -> Any:
    raise pulp.PulpSolverError("cannot execute /nowhere/solver")


def says_no_numbers(solver: Any, lp: Any) -> Any:
    status = HONEST(solver, lp)
    for variable in lp.variables():
        variable.varValue = float("nan")
    return status


def says_nothing(solver: Any, lp: Any) -> Any:
    lp.assignStatus(pulp.LpStatusOptimal, pulp.LpSolutionOptimal)
    lp.solverModel = None
    return pulp.LpStatusOptimal


def splits(solver: Any, lp: Any) -> Any:
    """Solves the relaxation instead."""
    return HONEST(pulp.HiGHS(mip=False, msg=False), lp)


def overlaps(solver: Any, lp: Any) -> Any:
    """Chooses everything at once."""
    status = HONEST(solver, lp)
    for variable in lp.variables():
        variable.varValue = 1.0
    lp.assignStatus(pulp.LpStatusOptimal, pulp.LpSolutionOptimal)
    return status


def overlooks_bytes(solver: Any, lp: Any) -> Any:
    """Claims that plans fit that do not."""
    rows = [row for row in lp.constraints.values() if row.sense == pulp.LpConstraintLE]
    for row in rows:
        row.constant -= 1e6
    try:
        return HONEST(solver, lp)
    finally:
        for row in rows:
            row.constant += 1e6


def finds_no_plan(solver: Any, lp: Any) -> Any:
    status = HONEST(solver, lp)
    lp.assignStatus(pulp.LpStatusInfeasible, pulp.LpSolutionInfeasible)
    return status


def gives_up(solver: Any, lp: Any) -> Any:
    """Ends without an answer, long before its time is up."""
    lp.assignStatus(pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound)
    lp.solverModel = SimpleNamespace(getInfo=lambda: SimpleNamespace(mip_dual_bound=-float("inf")))
    return pulp.LpStatusNotSolved


def runs_off(solver: Any, lp: Any) -> Any:
    """Claims that costs can fall for ever."""
    gives_up(solver, lp)
    lp.assignStatus(pulp.LpStatusUnbounded, pulp.LpSolutionUnbounded)
    return pulp.LpStatusUnbounded


def boasts(solver: Any, lp: Any) -> Any:
    """Claims a bound above what it found."""
    status = HONEST(solver, lp)
    info = SimpleNamespace(mip_dual_bound=2.0 * abs(lp.solverModel.getInfo().mip_dual_bound) + 1.0)
    lp.solverModel = SimpleNamespace(getInfo=lambda: info)
    return status


def overpays(solver: Any, lp: Any) -> Any:
    """Claims that the dearest plan is the cheapest."""
    lp.sense = pulp.LpMaximize
    try:
        return HONEST(solver, lp)
    finally:
        lp.sense = pulp.LpMinimize


FAKES = [
    crashes,
    is_missing,
    says_no_numbers,
    says_nothing,
    splits,
    overlaps,
    overlooks_bytes,
    finds_no_plan,
    gives_up,
    runs_off,
    boasts,
]


def auto(problem: Problem, budget_bytes: int) -> Solution:
    return solve(problem, budget_bytes, seconds=PLENTY)


def judge(problem: Problem, budget_bytes: int, found: Solution | Infeasible) -> None:
    """A solution, or the plan with the lowest peak, is what the judge says it is."""
    assert found.chosen is not None
    timeline = simulate(problem, found.chosen)
    if isinstance(found, Infeasible):
        assert timeline.peak_bytes == found.minimum_bytes > budget_bytes
    else:
        assert timeline.peak_bytes == found.peak_bytes <= budget_bytes
        assert timeline.recompute_seconds == found.recompute_seconds


@pytest.mark.parametrize("fake", FAKES)
def test_where_it_lies_an_instant_plan_or_better_is_returned(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", fake)
    noted: list[str] = []

    @settings(max_examples=40)
    @given(problems_and_budgets(max_calls=6))
    def compare(drawn: tuple[Problem, int]) -> None:
        problem, budget_bytes = drawn
        expected, found = outcome(optimum, *drawn), outcome(auto, *drawn)
        judge(*drawn, found)
        judged = Judge(problem)
        instant, _ = Instants(judged).best(budget_bytes)
        fits = judged.peak(instant) <= budget_bytes
        assert isinstance(found, Solution) or not fits
        noted.extend(found.notes)
        if isinstance(found, Solution):
            assert isinstance(expected, Solution)
            assert found.lower_bound_seconds is None or found.lower_bound_seconds <= expected.recompute_seconds
            assert found.status is Status.FEASIBLE or found.recompute_seconds == expected.recompute_seconds
            if found.notes and fits:
                assert found.recompute_seconds <= judged.seconds(instant)

    compare()
    assert noted
    assert all("\n" not in note for note in noted)
    problem = transformer(3)
    budget_bytes = simulate(problem, ()).peak_bytes * 6 // 10
    solution = solve(problem, budget_bytes)
    assert solution.notes[0].startswith("HiGHS ") and solution.peak_bytes <= budget_bytes
    with pytest.raises(BackendError, match=r"^HiGHS .* Solver 'auto' returns the best"):
        solve(problem, budget_bytes, solver="ilp")


@pytest.mark.parametrize("fake", [overpays, overlooks_bytes, crashes, finds_no_plan])
def test_a_bound_that_a_judged_plan_undercuts_is_not_claimed(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = transformer(3)
    budget_bytes = simulate(problem, ()).peak_bytes * 6 // 10
    expected = solve(problem, budget_bytes, seconds=PLENTY)
    assert expected.status is Status.OPTIMAL
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", fake)
    found = solve(problem, budget_bytes, seconds=PLENTY)
    judge(problem, budget_bytes, found)
    assert found.recompute_seconds >= expected.recompute_seconds * (1 - 1e-9)
    assert found.lower_bound_seconds is None or found.lower_bound_seconds <= expected.recompute_seconds * (1 + 1e-9)
    assert found.notes or fake is overlooks_bytes  # whose bounds are too low, but true


@pytest.mark.parametrize("fake", [crashes, overlaps, overlooks_bytes])
def test_a_sweep_goes_on_with_instant_plans(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = transformer(2)
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", fake)
    found = sweep(problem, points=4)
    assert len(found) > 2
    for solution in found:
        judge(problem, solution.peak_bytes, solution)
    assert any(solution.notes for solution in found)
    with pytest.raises(BackendError):
        sweep(problem, solver="ilp", points=4)


def test_required_calls_are_recomputed_whoever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", crashes)
    problem = transformer(3)
    required = problem.candidates[len(problem.candidates) // 2].start
    problem = dataclasses.replace(problem, required=(required,))
    solution = solve(problem, 10**12)
    assert any(problem.candidates[c].start <= required < problem.candidates[c].stop for c in solution.chosen)


def test_without_highs_there_is_a_plan_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    problem = transformer(3)
    budget_bytes = simulate(problem, ()).peak_bytes * 6 // 10
    solution = solve(problem, budget_bytes)
    assert solution.solver == Instants(Judge(problem)).best(budget_bytes)[1]
    assert solution.notes == (
        "HiGHS cannot be loaded (pip install highspy), so this is the best plan that was found without it",
    )
    with pytest.raises(BackendError, match="HiGHS cannot be loaded"):
        solve(problem, budget_bytes, solver="ilp")


def test_the_lowest_plan_comes_with_the_error() -> None:
    problem = transformer(2)
    with pytest.raises(Infeasible) as caught:
        solve(problem, 1)
    judge(problem, 1, caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).chosen == caught.value.chosen


def test_a_bound_on_any_method_does_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weaker = []

    @settings(max_examples=60)
    @given(models())
    def compare(drawn: tuple[Dataflow, Lives, int]) -> None:
        with monkeypatch.context() as patch:
            honest = peak_bound(*drawn)
            patch.setattr(pulp.HiGHS, "actualSolve", crashes)
            alone = peak_bound(*drawn)
        assert alone.seconds <= honest.seconds * (1 + 1e-5)
        assert not alone.converged or alone.seconds == honest.seconds
        weaker.append(not alone.converged)

    compare()
    assert any(weaker)


@pytest.mark.parametrize("fake", [overpays, overlooks_bytes, says_no_numbers, finds_no_plan, gives_up])
def test_a_bound_on_any_method_holds_whoever_lies(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(solver: Any, lp: Any) -> Any:
        asked.append(lp)
        return fake(solver, lp)

    @settings(max_examples=400)
    @given(models())
    def compare(drawn: tuple[Dataflow, Lives, int]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pulp.HiGHS, "actualSolve", counted)
            bound = peak_bound(*drawn)
        assert bound.seconds <= cheapest_schedule(*drawn) + TOLERANCE

    compare()
    assert asked
