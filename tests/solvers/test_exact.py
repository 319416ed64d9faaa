from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import (
    Call,
    Candidate,
    Infeasible,
    Problem,
    Save,
    Solution,
    Status,
    Step,
    Tensor,
    simulate,
    solve,
)
from autockpt.solvers.programme import ilp as ilp_module

from .exhaustive import minimum_bytes, optimum, outcome, plans
from .strategies import problems, problems_and_budgets, scaled
from .synthetic import transformer

PLENTY = 60.0
"""Seconds; what is solved here takes milliseconds, and a loaded machine must not turn a proof into a timeout."""

Exact = Callable[[Problem, int], Solution]


def ilp(problem: Problem, budget_bytes: int) -> Solution:
    return solve(problem, budget_bytes, solver="ilp", seconds=PLENTY)


def auto(problem: Problem, budget_bytes: int) -> Solution:
    return solve(problem, budget_bytes, solver="auto", seconds=PLENTY)


exact = pytest.mark.parametrize("solver", [optimum, ilp, auto])


@pytest.mark.parametrize(("few", "n_examples"), [(ilp_module.FEW, 600), ((0, 1), 300)], ids=["all", "few-first"])
def test_ilp_equals_brute_force(few: tuple[int, ...], n_examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gap 0, over all candidates at once, and over few first."""
    monkeypatch.setattr(ilp_module, "FEW", few)
    monkeypatch.setattr(ilp_module, "WORTH_IT", 9.0)  # search among few, however few there are
    compared: list[Solution | Infeasible] = []

    @settings(max_examples=n_examples)
    @given(problems_and_budgets())
    def compare(drawn: tuple[Problem, int]) -> None:
        expected, found = outcome(optimum, *drawn), outcome(ilp, *drawn)
        compared.append(expected)
        if isinstance(expected, Infeasible):
            assert isinstance(found, Infeasible)
            assert found.minimum_bytes == expected.minimum_bytes
        else:
            assert isinstance(found, Solution)
            assert found.recompute_seconds == pytest.approx(expected.recompute_seconds, rel=1e-9)
            assert found.status is Status.OPTIMAL
            assert found.gap == 0.0

    compare()
    assert len(compared) >= n_examples
    costly = [found for found in compared if isinstance(found, Solution) and found.recompute_seconds]
    assert len(costly) > n_examples // 5, "the drawn problems hardly ever ask for a decision"
    assert sum(len(found.chosen) > 1 for found in costly) > n_examples // 50


@exact
def test_feasible_at_the_minimum_and_not_a_byte_below(solver: Exact) -> None:
    @settings(max_examples=30)
    @given(problems())
    def check(problem: Problem) -> None:
        lowest = minimum_bytes(problem)
        if lowest > 0:
            assert solver(problem, lowest).peak_bytes == lowest
        if lowest > 1:
            with pytest.raises(Infeasible) as caught:
                solver(problem, lowest - 1)
            assert caught.value.minimum_bytes == lowest
            assert caught.value.budget_bytes == lowest - 1

    check()


@exact
def test_more_budget_never_costs_more(solver: Exact) -> None:
    @settings(max_examples=30)
    @given(problems_and_budgets(), st.integers(0, 60))
    def check(drawn: tuple[Problem, int], more_bytes: int) -> None:
        problem, budget_bytes = drawn
        less, more = outcome(solver, problem, budget_bytes), outcome(solver, problem, budget_bytes + more_bytes)
        if isinstance(less, Solution):
            assert isinstance(more, Solution)
            assert more.recompute_seconds <= less.recompute_seconds * (1 + 1e-9)

    check()


@exact
def test_counting_bytes_in_another_unit_changes_no_cost(solver: Exact) -> None:
    @settings(max_examples=30)
    @given(problems_and_budgets(), st.sampled_from((3, 512, 10**6 + 3)))
    def check(drawn: tuple[Problem, int], factor: int) -> None:
        problem, budget_bytes = drawn
        plain = outcome(solver, problem, budget_bytes)
        large = outcome(solver, scaled(problem, factor), factor * budget_bytes)
        if isinstance(plain, Solution):
            assert isinstance(large, Solution)
            assert large.recompute_seconds == pytest.approx(plain.recompute_seconds, rel=1e-9)
        else:
            assert isinstance(large, Infeasible)
            assert large.minimum_bytes == factor * plain.minimum_bytes

    check()


def test_presolve_for_mixed_columns_cuts_off_nothing() -> None:
    """HiGHS 1.10 to 1.15 called this infeasible when skips were continuous columns."""

    def candidate(start: int, stop: int, length: int, seconds: float) -> Candidate:
        return Candidate(name=f"{start}", start=start, stop=stop, length=length, recompute_seconds=seconds)

    parents_and_stops = [(-1, 9), (0, 2), (0, 3), (0, 4), (0, 7), (4, 7), (5, 7), (0, 9), (7, 9)]
    problem = Problem(
        steps=tuple(Step(name=f"{i}", base_bytes=n) for i, n in enumerate((0, 0, 0, 0, 16, 0))),
        calls=tuple(Call(name=f"c{i}", parent=p, stop=s) for i, (p, s) in enumerate(parents_and_stops)),
        tensors=(
            Tensor(bytes=1, free_step=0, saves=(Save(call=1, until=1), Save(call=3, until=5), Save(call=7, until=6))),
            Tensor(bytes=17, free_step=0, saves=(Save(call=3, until=1), Save(call=3, until=6), Save(call=4, until=5))),
        ),
        candidates=(
            candidate(1, 9, 5, 0.625),
            candidate(3, 4, 1, 0.0),
            candidate(3, 7, 2, 0.0),
            candidate(4, 9, 2, 0.0),
            candidate(7, 9, 1, 0.125),
        ),
    )
    assert ilp(problem, 16).recompute_seconds == 0.0


@settings(max_examples=50)
@given(problems())
def test_brute_force_tries_every_plan(problem: Problem) -> None:
    candidates = problem.candidates
    sets: list[tuple[int, ...]] = [()]
    for c, candidate in enumerate(candidates):
        sets += [
            (*chosen, c)
            for chosen in sets
            if all(candidates[o].stop <= candidate.start or candidate.stop <= candidates[o].start for o in chosen)
        ]
    assert sorted(tuple(sorted(plan)) for plan in plans(problem)) == sorted(sets)


def test_out_of_time_returns_a_judged_plan_with_an_honest_gap() -> None:
    problem = transformer(8)
    budget_bytes = simulate(problem, ()).peak_bytes * 3 // 10
    at_once = solve(problem, budget_bytes, solver="ilp", seconds=1e-6)
    assert at_once.status is Status.FEASIBLE
    assert simulate(problem, at_once.chosen).peak_bytes == at_once.peak_bytes <= budget_bytes
    assert at_once.gap is None or 0.0 <= at_once.gap <= 1.0

    later = solve(problem, budget_bytes, solver="ilp", seconds=PLENTY)
    assert later.recompute_seconds <= at_once.recompute_seconds
    assert later.lower_bound_seconds is not None
    assert 0.0 <= later.lower_bound_seconds <= later.recompute_seconds
