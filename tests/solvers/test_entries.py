"""Several candidates of one span: the entries of a menu, which exclude one another."""

from __future__ import annotations

from functools import partial
from typing import Any

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
    solve,
)
from autockpt.solvers.deadline import Deadline
from autockpt.solvers.judge import Judge
from autockpt.solvers.plans.instant import Instants
from autockpt.solvers.programme import ilp as ilp_module

from .exhaustive import optimum, outcome
from .strategies import chains_and_budgets, problems_and_budgets
from .synthetic import menus

PLENTY = 60.0


@pytest.mark.parametrize(("few", "n_examples"), [(ilp_module.FEW, 150), ((0, 1), 100)], ids=["all", "few-first"])
def test_ilp_chooses_among_entries_as_brute_force_does(
    few: tuple[int, ...], n_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ilp_module, "FEW", few)
    monkeypatch.setattr(ilp_module, "WORTH_IT", 9.0)  # search among few, however few there are
    shared = 0

    @settings(max_examples=n_examples)
    @given(problems_and_budgets(max_calls=5, max_entries=3))
    def compare(drawn: tuple[Problem, int]) -> None:
        nonlocal shared
        problem, budget_bytes = drawn
        expected = outcome(optimum, problem, budget_bytes)
        try:
            found = solve(problem, budget_bytes, solver="ilp", seconds=PLENTY)
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


def test_a_few_promising_candidates_hold_a_plan_near_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = menus(16)
    judge = Judge(problem)
    budget_bytes = int(0.7 * judge.peak(()))
    proven = solve(problem, budget_bytes, solver="ilp", seconds=PLENTY)
    branch = ilp_module._Search.branch

    def of_few_alone(search: ilp_module._Search, *some: Any, proves: bool) -> None:
        if not proves:
            branch(search, *some, proves=False)

    monkeypatch.setattr(ilp_module, "FEW", (1,))
    monkeypatch.setattr(ilp_module._Search, "branch", of_few_alone)
    start = solve(problem, budget_bytes, solver="block")
    found = ilp_module.search(
        Instants(judge).columns,
        (start.chosen, "block"),
        budget_bytes,
        deadline=Deadline.after(PLENTY),
        asked="ilp",
    )
    assert found.recompute_seconds <= 1.05 * proven.recompute_seconds < 0.8 * start.recompute_seconds
    assert found.lower_bound_seconds is not None
    assert found.lower_bound_seconds <= proven.recompute_seconds  # that of the few candidates is no bound of all


def test_an_addition_of_no_steps_closes_nothing() -> None:
    """Such an addition, larger than the budget, kept a candidate out of the programme, which then claimed too much."""
    problem = Problem(
        steps=(Step(name="forward", base_bytes=10), Step(name="backward", base_bytes=4)),
        calls=(Call(name="", parent=-1, stop=2), Call(name="a#0", parent=0, stop=2)),
        tensors=(Tensor(bytes=20, free_step=0, saves=(Save(call=1, until=2),)),),
        candidates=tuple(
            Candidate(name="a#0", start=1, stop=2, length=1, recompute_seconds=seconds, additions=additions)
            for seconds, additions in ((1.0, (Addition(bytes=99, start=1, until=1),)), (2.0, ()))
        ),
    )
    assert solve(problem, 12, solver="ilp").chosen == (0,)
