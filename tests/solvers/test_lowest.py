"""The question turned round, against brute force: the lowest peak within so many recompute seconds."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import (
    SOLVERS,
    BudgetError,
    Infeasible,
    Problem,
    TooCostly,
    UnknownSolver,
    least_peak,
    simulate,
    solve,
)
from autockpt.solvers.programme.ilp import UNPROVEN

from .exhaustive import judged_plans, minimum_bytes, optimum, recomputes_what_is_required
from .strategies import problems, required_and_budgets
from .synthetic import transformer

PLENTY = 600.0
any_solver = pytest.mark.parametrize("name", tuple(SOLVERS))
exact = pytest.mark.parametrize("name", ["auto", "ilp"])


@exact
def test_exact_solvers_find_the_lowest_peak_and_the_cheapest_plan_that_has_it(name: str) -> None:
    between = 0

    @settings(max_examples=60)
    @given(required_and_budgets(), st.integers(1, 7))
    def check(drawn: tuple[Problem, int], share: int) -> None:
        nonlocal between
        problem = drawn[0]
        judged = [(peak_bytes, seconds) for _, peak_bytes, seconds in judged_plans(problem)]
        _, enough_seconds = min(judged)
        most_seconds = enough_seconds * share / 8
        allowed = [one for one in judged if one[1] <= most_seconds]
        if not allowed:
            with pytest.raises(TooCostly) as caught:
                least_peak(problem, most_seconds=most_seconds, solver=name, seconds=PLENTY)
            assert caught.value.least_seconds == min(seconds for _, seconds in judged) > most_seconds
            return
        peak, seconds = min(allowed)
        found = least_peak(problem, most_seconds=most_seconds, solver=name, seconds=PLENTY)
        assert found.peak_bytes == peak
        assert found.recompute_seconds == pytest.approx(seconds, rel=1e-9)
        assert recomputes_what_is_required(problem, found.chosen)
        assert found.notes == ()
        between += min(judged)[0] < peak < simulate(problem, ()).peak_bytes

    check()
    assert between > 2, "the drawn seconds hardly ever ask for a decision"


@exact
def test_all_the_seconds_there_are_buy_the_minimum(name: str) -> None:
    @settings(max_examples=12)
    @given(problems(max_entries=2))
    def check(problem: Problem) -> None:
        found = least_peak(problem, solver=name, seconds=PLENTY)
        lowest = minimum_bytes(problem)
        assert found.peak_bytes == lowest
        cheapest = optimum(problem, lowest).recompute_seconds
        assert found.recompute_seconds == pytest.approx(cheapest, rel=1e-9)

    check()


@any_solver
def test_every_solver_keeps_to_the_seconds_or_says_what_it_needs(name: str) -> None:
    @settings(max_examples=10)
    @given(required_and_budgets(), st.integers(0, 48))
    def check(drawn: tuple[Problem, int], eighths: int) -> None:
        problem, most_seconds = drawn[0], eighths / 8
        try:
            found = least_peak(problem, most_seconds=most_seconds, solver=name, seconds=PLENTY)
        except TooCostly as error:
            assert error.least_seconds > error.most_seconds == most_seconds
            assert error.solver == name
            again = least_peak(problem, most_seconds=error.least_seconds, solver=name, seconds=PLENTY)
            assert again.recompute_seconds <= error.least_seconds
            return
        timeline = simulate(problem, found.chosen)
        assert found.peak_bytes == timeline.peak_bytes
        assert found.recompute_seconds == timeline.recompute_seconds <= most_seconds
        assert recomputes_what_is_required(problem, found.chosen)

    check()


@pytest.mark.parametrize("name", ["articulation", "chain", "sqrt"])
def test_more_seconds_never_buy_a_higher_peak(name: str) -> None:
    problem = transformer(3)
    most = least_peak(problem, solver=name).recompute_seconds
    found = [least_peak(problem, most_seconds=most * i / 2, solver=name) for i in range(3)]
    assert all(below.peak_bytes <= above.peak_bytes for above, below in pairwise(found))
    assert found[0].peak_bytes == simulate(problem, ()).peak_bytes
    assert found[2].peak_bytes < found[1].peak_bytes < found[0].peak_bytes
    assert all(one.recompute_seconds <= most * i / 2 * (1 + 1e-9) for i, one in enumerate(found))


def test_out_of_time_it_is_as_good_as_the_instant_solvers_and_says_so() -> None:
    problem = transformer(4)
    most = least_peak(problem, solver="chain").recompute_seconds / 2
    found = least_peak(problem, most_seconds=most, seconds=1e-6)
    assert found.recompute_seconds <= most
    assert any("not proven in time" in note for note in found.notes)
    by_chain = least_peak(problem, most_seconds=most, solver="chain", seconds=PLENTY)
    assert found.peak_bytes <= by_chain.peak_bytes * 1.01


@pytest.mark.parametrize("most_seconds", [-1.0, math.nan, -math.inf])
def test_misuse(most_seconds: float) -> None:
    with pytest.raises(BudgetError, match="0 seconds or more"):
        least_peak(transformer(2), most_seconds=most_seconds)
    with pytest.raises(UnknownSolver):
        least_peak(transformer(2), solver="best")


def test_too_costly_says_both_figures_and_survives_pickling() -> None:
    pins = ("recompute='h.0'",)
    error = TooCostly(most_seconds=0.1, least_seconds=0.25, solver="all", chosen=(3,), plain_seconds=2.0, pins=pins)
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert str(again) == str(error)
    for part in ("'all'", "5.00%", "12.50%", "0.25 seconds", "with the pins recompute='h.0'", "take pins away"):
        assert part in str(error)
    assert "recompute seconds" in str(error.carrying(plain_seconds=None))


def test_a_minimum_that_is_not_proven_says_so() -> None:
    problem = transformer(3)
    with pytest.raises(Infeasible) as hasty:
        solve(problem, 1, seconds=1e-6)
    with pytest.raises(Infeasible) as patient:
        solve(problem, 1, seconds=PLENTY)
    assert UNPROVEN in hasty.value.notes
    assert f"Note that {UNPROVEN}" in str(hasty.value)
    assert patient.value.notes == ()
    assert UNPROVEN in least_peak(problem, seconds=1e-6).notes
    assert least_peak(problem, seconds=PLENTY).notes == ()
