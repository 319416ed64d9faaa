"""Backends that crash or lie: the judge rejects what they say, the next is asked, and the solution tells it."""

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
    integer_search,
    peak_bound,
    simulate,
    solve,
    sweep,
)
from autockpt.solvers.backends import Backends
from autockpt.solvers.instant import instant_plan
from autockpt.solvers.ledger import Ledger

from .exhaustive import optimum, outcome
from .strategies import problems_and_budgets
from .synthetic import transformer
from .test_bound import TOLERANCE, cheapest_schedule, models

pytest.importorskip("highspy")

PLENTY = 60.0

Fake = Callable[[Any, Any], Any]
"""Solves a problem in place of a backend's `actualSolve`."""

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
    return solve(problem, budget_bytes, time_limit_seconds=PLENTY)


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
def test_where_one_lies_the_other_finds_the_optimum(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", fake)
    failed: list[str] = []

    @settings(max_examples=25)
    @given(problems_and_budgets(max_calls=6))
    def compare(drawn: tuple[Problem, int]) -> None:
        expected, found = outcome(optimum, *drawn), outcome(auto, *drawn)
        judge(*drawn, found)
        failed.extend(note for note in found.notes if note.endswith("CBC was asked instead"))
        if isinstance(expected, Infeasible):
            assert isinstance(found, Infeasible)
            assert found.minimum_bytes == expected.minimum_bytes
        else:
            assert isinstance(found, Solution)
            assert found.recompute_seconds == pytest.approx(expected.recompute_seconds, rel=1e-9)
            assert found.status is Status.OPTIMAL

    compare()
    assert failed
    assert all(note.startswith("HiGHS ") and "\n" not in note for note in failed)


@pytest.mark.parametrize("fake", FAKES)
def test_where_both_lie_the_instant_plan_is_returned(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    if fake is not boasts:  # CBC's bound is in its log
        monkeypatch.setattr(pulp.COIN_CMD, "actualSolve", fake)
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", fake)
    monkeypatch.setattr(
        Backends, "of", classmethod(lambda cls, backend=None: cls(left=["highs", "cbc"][: 1 + (fake is not boasts)]))
    )

    @settings(max_examples=25)
    @given(problems_and_budgets(max_calls=6))
    def compare(drawn: tuple[Problem, int]) -> None:
        problem, budget_bytes = drawn
        expected, found = outcome(optimum, *drawn), outcome(auto, *drawn)
        judge(*drawn, found)
        instant = instant_plan(Ledger.of(problem), budget_bytes)
        assert isinstance(found, Solution) or not instant.fits
        if isinstance(found, Solution):
            assert isinstance(expected, Solution)
            assert found.lower_bound_seconds is None or found.lower_bound_seconds <= expected.recompute_seconds
            if found.notes:
                assert "there is no other to ask" in found.notes[-1]
                assert found.recompute_seconds <= Ledger.of(problem).seconds(instant.plan)
                assert found.solver == instant.solver or found.chosen != instant.plan

    compare()
    problem = transformer(3)
    budget_bytes = simulate(problem, ()).peak_bytes * 6 // 10
    solution = solve(problem, budget_bytes)
    assert solution.notes and solution.peak_bytes <= budget_bytes
    with pytest.raises(BackendError, match="'ilp' has nobody who solves"):
        solve(problem, budget_bytes, solver="ilp")


@pytest.mark.parametrize("small", [integer_search.SMALL, 0], ids=["at-once", "generated"])
@pytest.mark.parametrize("fake", [overpays, overlooks_bytes, crashes, finds_no_plan])
def test_a_bound_that_a_judged_plan_undercuts_is_not_claimed(
    fake: Fake, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = transformer(3)
    budget_bytes = simulate(problem, ()).peak_bytes * 6 // 10
    expected = solve(problem, budget_bytes, time_limit_seconds=PLENTY)
    assert expected.status is Status.OPTIMAL
    monkeypatch.setattr(integer_search, "SMALL", small)
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", fake)
    found = solve(problem, budget_bytes, time_limit_seconds=PLENTY)
    assert found.notes
    judge(problem, budget_bytes, found)
    assert found.recompute_seconds == pytest.approx(expected.recompute_seconds, rel=1e-9)


@pytest.mark.parametrize("fake", [crashes, overlaps, overlooks_bytes])
def test_a_sweep_goes_on_with_the_next_and_asks_the_first_no_more(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = transformer(2)
    expected = sweep(problem, points=4, time_limit_seconds=PLENTY)
    asked = []

    def counted(solver: Any, lp: Any) -> Any:
        asked.append(lp)
        return fake(solver, lp)

    monkeypatch.setattr(pulp.HiGHS, "actualSolve", counted)
    found = sweep(problem, points=4, time_limit_seconds=PLENTY)
    assert [each.peak_bytes for each in found] == [each.peak_bytes for each in expected]
    assert [each.recompute_seconds for each in found] == pytest.approx([each.recompute_seconds for each in expected])
    assert len(asked) == 1 or fake is not crashes
    assert all("HiGHS" in each.notes[0] for each in found[1:])
    monkeypatch.setattr(pulp.COIN_CMD, "actualSolve", fake)
    for solution in sweep(problem, points=4):
        judge(problem, solution.peak_bytes, solution)
        assert solution.solver != "ilp"
    with pytest.raises(BackendError):
        sweep(problem, solver="ilp", points=4)


def test_required_calls_are_recomputed_whoever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in (pulp.HiGHS, pulp.COIN_CMD):
        monkeypatch.setattr(backend, "actualSolve", crashes)
    problem = transformer(3)
    required = problem.candidates[len(problem.candidates) // 2].start
    problem = dataclasses.replace(problem, required=(required,))
    solution = solve(problem, 10**12)
    assert any(problem.candidates[c].start <= required < problem.candidates[c].stop for c in solution.chosen)


def test_without_any_backend_there_is_a_plan_and_ilp_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in (pulp.HiGHS, pulp.COIN_CMD):
        monkeypatch.setattr(backend, "available", lambda self: False)
    problem = transformer(3)
    budget_bytes = simulate(problem, ()).peak_bytes * 6 // 10
    solution = solve(problem, budget_bytes)
    assert solution.solver == instant_plan(Ledger.of(problem), budget_bytes).solver
    assert solution.notes == ()
    with pytest.raises(ValueError, match="needs HiGHS"):
        solve(problem, budget_bytes, solver="ilp")


def test_the_lowest_plan_comes_with_the_error() -> None:
    problem = transformer(2)
    with pytest.raises(Infeasible) as caught:
        solve(problem, 1)
    judge(problem, 1, caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).chosen == caught.value.chosen


def test_a_bound_on_any_method_does_without_those_that_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    several = []

    @settings(max_examples=60)
    @given(models())
    def compare(drawn: tuple[Dataflow, Lives, int]) -> None:
        with monkeypatch.context() as patch:
            honest = peak_bound(*drawn)
            patch.setattr(pulp.HiGHS, "actualSolve", crashes)
            by_cbc = peak_bound(*drawn)
            patch.setattr(pulp.COIN_CMD, "actualSolve", crashes)
            alone = peak_bound(*drawn)
        assert by_cbc.seconds == pytest.approx(honest.seconds, rel=1e-5)
        assert alone.seconds <= honest.seconds * (1 + 1e-5)
        assert not alone.converged or alone.seconds == honest.seconds
        several.append(not alone.converged)

    compare()
    assert any(several)


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
