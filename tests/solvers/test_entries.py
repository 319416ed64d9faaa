"""Several candidates of one span: the entries of a menu, which exclude one another."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings

from autockpt.solvers import (
    SOLVERS,
    Addition,
    Call,
    Candidate,
    Infeasible,
    Problem,
    Save,
    Solution,
    Status,
    Step,
    Tensor,
    integer_search,
    solve,
)
from autockpt.solvers import ilp as ilp_module
from autockpt.solvers.backends import Backend, Backends
from autockpt.solvers.formulation import Formulation
from autockpt.solvers.ledger import Ledger

from .exhaustive import optimum, outcome
from .strategies import chains_and_budgets, problems_and_budgets
from .synthetic import menus

PLENTY = 60.0


@pytest.mark.parametrize(
    ("backend", "small", "n_examples"),
    [
        pytest.param("highs", integer_search.SMALL, 150, id="highs-at-once"),
        pytest.param("highs", 0, 60, id="highs-generated"),
        pytest.param("cbc", 0, 40, id="cbc-generated"),
    ],
)
def test_ilp_chooses_among_entries_as_brute_force_does(
    backend: Backend, small: int, n_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "highs":
        pytest.importorskip("highspy")
    monkeypatch.setattr(integer_search, "SMALL", small)
    monkeypatch.setattr(integer_search, "PROMISING", (0, 1))
    monkeypatch.setattr(integer_search, "FEW", 9.0)  # search among few, however few there are
    shared = 0

    @settings(max_examples=n_examples)
    @given(problems_and_budgets(max_calls=5, max_entries=3))
    def compare(drawn: tuple[Problem, int]) -> None:
        nonlocal shared
        problem, budget_bytes = drawn
        expected = outcome(optimum, problem, budget_bytes)
        try:
            found = ilp_module.solve(problem, budget_bytes, time_limit_seconds=PLENTY, backend=backend)
        except Infeasible as error:
            assert isinstance(expected, Infeasible)
            assert error.minimum_bytes == expected.minimum_bytes
            return
        assert isinstance(expected, Solution)
        assert found.recompute_seconds == pytest.approx(expected.recompute_seconds, rel=1e-9)
        assert found.status is Status.OPTIMAL
        spans = [(c.start, c.stop) for c in problem.candidates]
        shared += any(spans.count(spans[c]) > 1 for c in found.chosen)

    compare()
    assert shared > n_examples // 10


def test_the_dynamic_programme_chooses_among_entries_as_brute_force_does() -> None:
    """Sizes here are so few that the slots round nothing."""
    total = 0

    @settings(max_examples=300)
    @given(chains_and_budgets())
    def compare(drawn: tuple[Problem, int]) -> None:
        nonlocal total
        expected, found = optimum(*drawn), solve(*drawn, solver="chain")
        assert found.recompute_seconds == expected.recompute_seconds
        total += bool(found.chosen)

    compare()
    assert total >= 100


@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "none"])
def test_every_solver_takes_one_entry_of_a_span_at_most(name: str) -> None:
    @settings(max_examples=30)
    @given(chains_and_budgets())
    def check(drawn: tuple[Problem, int]) -> None:
        found = outcome(partial(solve, solver=name), *drawn)
        if isinstance(found, Solution):
            starts = [drawn[0].candidates[c].start for c in found.chosen]
            assert len(starts) == len(set(starts))

    check()


@pytest.mark.parametrize("name", ["auto", "chain", "ilp"])
def test_the_cheapest_entry_that_fits_is_taken(name: str) -> None:
    def entry(seconds: float, step_bytes: int) -> Candidate:
        return Candidate(
            name=f"a#0 for {seconds} s",
            start=1,
            stop=2,
            length=1,
            recompute_seconds=seconds,
            additions=(Addition(bytes=step_bytes, start=0, until=2),),
        )

    problem = Problem(
        steps=(Step(name="forward", base_bytes=10), Step(name="backward", base_bytes=4)),
        calls=(Call(name="", parent=-1, stop=2), Call(name="a#0", parent=0, stop=2)),
        tensors=(Tensor(bytes=20, free_step=0, saves=(Save(call=1, until=2),)),),
        candidates=(entry(3.0, 2), entry(1.0, 9), entry(2.0, 5)),
    )
    chosen = [solve(problem, budget_bytes, solver=name).chosen for budget_bytes in (30, 29, 19, 18, 15, 14, 12)]
    assert chosen == [(), (1,), (1,), (2,), (2,), (0,), (0,)]


@pytest.mark.parametrize("backend", ["highs", "cbc"])
def test_a_few_promising_candidates_hold_a_plan_near_the_optimum(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "highs":
        pytest.importorskip("highspy")
    problem = menus(16)
    ledger = Ledger.of(problem)
    budget_bytes = int(0.7 * ledger.peak(()))
    proven = ilp_module.solve(problem, budget_bytes, time_limit_seconds=5.0, backend=backend)
    monkeypatch.setattr(integer_search, "SMALL", 0)
    monkeypatch.setattr(integer_search, "PROMISING", (1,))
    monkeypatch.setattr(integer_search.Search, "branch", lambda search: None)
    start = solve(problem, budget_bytes, solver="block")
    found = ilp_module.search(
        ledger,
        start.chosen,
        budget_bytes=budget_bytes,
        deadline=time.perf_counter() + PLENTY,
        backends=Backends.of(backend),
    )
    assert found.recompute_seconds <= 1.05 * proven.recompute_seconds < 0.8 * start.recompute_seconds
    assert found.lower_bound_seconds is not None
    assert found.lower_bound_seconds <= proven.recompute_seconds  # that of the few candidates is no bound of all


@given(problems_and_budgets(max_entries=3))
def test_only_the_cheapest_of_candidates_that_do_the_same_is_searched(drawn: tuple[Problem, int]) -> None:
    problem, budget_bytes = drawn
    dearer = tuple(replace(each, recompute_seconds=each.recompute_seconds + 0.5) for each in problem.candidates)
    both = replace(problem, candidates=(*dearer, *problem.candidates))
    alone, found = (Formulation.of(Ledger.of(each), budget_bytes).active for each in (problem, both))
    assert found == tuple(len(dearer) + c for c in alone)
