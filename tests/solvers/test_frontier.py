"""Many budgets at once: what stands on a frontier, against the solvers one budget at a time."""

from __future__ import annotations

import dataclasses
import itertools
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import (
    SOLVERS,
    BudgetError,
    Infeasible,
    InvalidProblem,
    Problem,
    Solution,
    Status,
    UnknownSolver,
    simulate,
    solve,
    sweep,
)
from autockpt.solvers.columns import Columns
from autockpt.solvers.plans.instant import Instants
from autockpt.solvers.programme import ilp

from .exhaustive import minimum_bytes, optimum
from .strategies import problems
from .synthetic import transformer

PLENTY = 600.0
any_solver = pytest.mark.parametrize("name", tuple(SOLVERS))
exact = pytest.mark.parametrize("name", ["auto", "ilp"])


def under(solutions: tuple[Solution, ...], budget_bytes: int) -> Solution:
    """The cheapest of them within a budget."""
    return next(solution for solution in solutions if solution.peak_bytes <= budget_bytes)


@any_solver
def test_it_goes_down_from_plain_and_every_step_costs(name: str) -> None:
    @settings(max_examples=30)
    @given(problems(), st.integers(2, 6))
    def check(problem: Problem, points: int) -> None:
        found = sweep(problem, solver=name, points=points, seconds=PLENTY)
        assert found[0].chosen == ()
        assert len(found) <= points
        for solution in found:
            timeline = simulate(problem, solution.chosen)
            assert solution.peak_bytes == timeline.peak_bytes
            assert solution.recompute_seconds == timeline.recompute_seconds
        assert all(above.peak_bytes > below.peak_bytes for above, below in pairwise(found))
        costs = [solution.recompute_seconds for solution in found]
        assert all(above < below for above, below in pairwise(costs[1:]))
        assert costs[:1] <= costs[1:2] or len(costs) == 1

    check()


@any_solver
def test_it_ends_at_the_lowest_peak_that_the_solver_reaches(name: str) -> None:
    @settings(max_examples=30)
    @given(problems())
    def check(problem: Problem) -> None:
        lowest = sweep(problem, solver=name, points=2, seconds=PLENTY)[-1]
        plain_bytes = simulate(problem, ()).peak_bytes
        try:
            cold = solve(problem, 1, solver=name, seconds=PLENTY).peak_bytes
        except Infeasible as error:
            assert lowest.peak_bytes == min(error.minimum_bytes, plain_bytes)
        else:
            assert lowest.peak_bytes <= cold

    check()


@exact
def test_every_budget_gets_what_an_exact_solver_finds_for_it_alone(name: str) -> None:
    compared = []

    @settings(max_examples=30)
    @given(problems(max_entries=2), st.data())
    def check(problem: Problem, data: st.DataObject) -> None:
        lowest_bytes, plain_bytes = minimum_bytes(problem), simulate(problem, ()).peak_bytes
        budgets = data.draw(st.lists(st.integers(max(lowest_bytes, 1), max(plain_bytes, 1)), max_size=4))
        found = sweep(problem, solver=name, budgets_bytes=budgets, seconds=PLENTY)
        for budget_bytes in budgets:
            cold = optimum(problem, budget_bytes)
            warm = under(found, budget_bytes)
            assert warm.recompute_seconds == pytest.approx(cold.recompute_seconds, rel=1e-9)
            compared.append(cold.recompute_seconds)
        assert all(solution.status is Status.OPTIMAL for solution in found)

    check()
    assert sum(cost > 0 for cost in compared) > 10, "the drawn budgets hardly ever ask for a decision"


@pytest.mark.parametrize("name", ["articulation", "block", "chain", "sqrt", "uniform"])
def test_no_heuristic_does_worse_than_alone(name: str) -> None:
    problem = transformer(4)
    found = sweep(problem, solver=name, points=6)
    lowest_bytes, plain_bytes = found[-1].peak_bytes, found[0].peak_bytes
    for i in range(6):
        budget_bytes = lowest_bytes + int(i * (plain_bytes - lowest_bytes) / 5)
        try:
            alone = solve(problem, budget_bytes, solver=name)
        except Infeasible:
            continue
        assert under(found, budget_bytes).recompute_seconds <= alone.recompute_seconds


def test_budgets_out_of_reach_are_left_out_and_the_minimum_is_not() -> None:
    problem = transformer(3)
    found = sweep(problem, solver="chain", points=2)
    assert len(found) == 2
    again = sweep(problem, solver="chain", budgets_bytes=[1, found[-1].peak_bytes - 1, found[0].peak_bytes + 1])
    assert again == found


def test_out_of_time_the_instant_plans_are_there() -> None:
    problem = transformer(6)
    found = sweep(problem, points=5, seconds=1e-6)
    plain_bytes = found[0].peak_bytes
    for share in (0.9, 0.7, 0.5):
        budget_bytes = int(plain_bytes * share)
        at_once = sweep(problem, budgets_bytes=[budget_bytes], seconds=1e-6)
        instant = min(
            solve(problem, budget_bytes, solver=name).recompute_seconds for name in ("articulation", "chain", "sqrt")
        )
        assert under(at_once, budget_bytes).recompute_seconds <= instant
    assert len(found) >= 4
    assert found[-1].peak_bytes < plain_bytes // 2


def test_misuse() -> None:
    problem = transformer(3)
    with pytest.raises(BudgetError, match="at least 2 points"):
        sweep(problem, points=1)
    with pytest.raises(BudgetError, match="positive number of bytes"):
        sweep(problem, budgets_bytes=[10**9, 0])
    with pytest.raises(InvalidProblem, match="requires recomputing transformer"):
        sweep(dataclasses.replace(problem, required=(1,)))
    with pytest.raises(UnknownSolver, match="did you mean 'auto'"):
        sweep(problem, solver="autos")


def test_a_plan_that_fits_a_budget_starts_the_search_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    best, search, turns = Instants.best, ilp.search, itertools.count()
    starts: dict[int, float] = {}

    def weak_every_other_time(self: Instants, budget_bytes: int) -> tuple[tuple[int, ...], str]:
        return best(self, 0 if next(turns) % 2 else budget_bytes)

    def spied(columns: Columns, start: tuple[tuple[int, ...], str], budget_bytes: int, **others: Any) -> Solution:
        starts[budget_bytes] = columns.judge.seconds(start[0])
        found: Solution = search(columns, start, budget_bytes, **others)
        return found

    monkeypatch.setattr(Instants, "best", weak_every_other_time)
    monkeypatch.setattr("autockpt.solvers.sweeps.frontier.search", spied)
    sweep(transformer(8), points=12, seconds=1e-6)
    seconds = [starts[budget_bytes] for budget_bytes in sorted(starts)]
    assert len(set(seconds)) > 3
    assert all(before >= after for before, after in pairwise(seconds))
