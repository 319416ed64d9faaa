"""What is strange or large, and deadlines, on a clock that only the solver's own waiting moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pulp
import pytest

from autockpt.solvers import (
    SOLVERS,
    Addition,
    Call,
    Candidate,
    Hold,
    Infeasible,
    Problem,
    Save,
    Step,
    Tensor,
    least_peak,
    simulate,
    solve,
    sweep,
)

from .synthetic import menus, transformer

any_solver = pytest.mark.parametrize("name", tuple(SOLVERS))


def row_of(n: int, *, nested: bool = False, longest: int = 1) -> Problem:
    """Calls beside or inside one another; each saves a tensor, and is recomputed with up to so many of the next."""
    last = 2 * n

    def candidate(first: int, length: int) -> Candidate:
        saved = range(first, n if nested else first + length)
        return Candidate(
            name=f"{first}#0",
            start=1 + first,
            stop=1 + (n if nested else first + length),
            length=length,
            recompute_seconds=float(len(saved)),
            holds=(Hold(tensor=n + first, until=last - first),),
            additions=tuple(Addition(bytes=8, start=last - saved[-1] - 1, until=last - i) for i in saved),
        )

    return Problem(
        steps=tuple(Step(name=f"step {i}", base_bytes=100) for i in range(last)),
        calls=(
            Call(name="", parent=-1, stop=n + 1),
            *(Call(name=f"{i}#0", parent=i if nested else 0, stop=n + 1 if nested else i + 2) for i in range(n)),
        ),
        tensors=(
            *(Tensor(bytes=8, free_step=i + 1, saves=(Save(call=1 + i, until=last - i),)) for i in range(n)),
            *(Tensor(bytes=1, free_step=i + 1) for i in range(n)),
        ),
        candidates=tuple(
            candidate(first, length) for first in range(n) for length in range(1, min(longest, n - first) + 1)
        ),
    )


def check(problem: Problem, name: str, percent: int) -> None:
    budget_bytes = simulate(problem, ()).peak_bytes * percent // 100
    try:
        found = solve(problem, budget_bytes, solver=name, seconds=0.5)
    except Infeasible as error:
        assert error.minimum_bytes > budget_bytes
        return
    timeline = simulate(problem, found.chosen)
    assert (found.peak_bytes, found.recompute_seconds) == (timeline.peak_bytes, timeline.recompute_seconds)
    assert found.peak_bytes <= budget_bytes


@any_solver
def test_150_nested_modules(name: str) -> None:
    check(row_of(150, nested=True), name, 80)


@any_solver
def test_5000_siblings(name: str) -> None:
    check(row_of(5000), name, 60)


@any_solver
def test_a_thousand_equal_blocks(name: str) -> None:
    check(row_of(1000, longest=8), name, 30)


@any_solver
def test_one_call(name: str) -> None:
    problem = Problem(
        steps=(Step(name="forward", base_bytes=1),),
        calls=(Call(name="", parent=-1, stop=1),),
        tensors=(Tensor(bytes=2, free_step=0, saves=(Save(call=0, until=1),)),),
    )
    assert solve(problem, 3, solver=name).chosen == ()
    with pytest.raises(Infeasible) as caught:
        solve(problem, 2, solver=name)
    assert caught.value.minimum_bytes == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda problem, budget_bytes, seconds: solve(problem, budget_bytes, seconds=seconds),
        lambda problem, budget_bytes, seconds: least_peak(problem, seconds=seconds),
        lambda problem, budget_bytes, seconds: sweep(problem, points=6, seconds=seconds),
    ],
    ids=["solve", "least_peak", "sweep"],
)
@pytest.mark.parametrize("problem", [transformer(6), menus(24)], ids=["calls", "menus"])
def test_a_deadline_is_kept_within_a_tenth(
    problem: Problem, ask: Callable[[Problem, int, float], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HiGHS takes all that it is given, and every look at the clock a millisecond."""
    clock, answers = [0.0], [0]
    honest = pulp.HiGHS.actualSolve

    def look() -> float:
        clock[0] += 1e-3
        return clock[0]

    def slow(solver: Any, lp: Any) -> Any:
        """Solves the first relaxation, and nothing more."""
        answers[0] += 1
        limit = solver.timeLimit
        if answers[0] == 1:
            solver.timeLimit = 60.0
            clock[0] += 0.2 * limit
            return honest(solver, lp)
        clock[0] += limit
        lp.assignStatus(pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound)
        lp.solverModel = SimpleNamespace(
            getInfo=lambda: SimpleNamespace(mip_dual_bound=-float("inf"), primal_solution_status=0)
        )
        return pulp.LpStatusNotSolved

    budget_bytes = simulate(problem, ()).peak_bytes * 4 // 10
    monkeypatch.setattr(time, "perf_counter", look)
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", slow)
    for seconds in (0.5, 3.0):
        clock[0], answers[0] = 0.0, 0
        ask(problem, budget_bytes, seconds)
        assert clock[0] <= 1.1 * seconds
        assert answers[0] > 0
