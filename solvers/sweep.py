"""One problem under many budgets: the plans that no other beats in both peak and seconds.

    minimum ──b──b──b──b──▶ plain        first upwards: a plan that fits one budget fits the next, and starts its search
    minimum ◀──b──b──b──b── plain        then downwards: the easy ones first, whose time the hard ones get

The budgets share the arrays of the problem and one deadline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from .backends import Backends
from .errors import BudgetError, Infeasible, InvalidProblem
from .families import Plan, best_plan, judged
from .ilp import all_failed, lower_peak, search
from .instant import Instants
from .ledger import Ledger
from .problem import Problem, Solution
from .registry import check_budget, named

POINTS = 20

TIME_LIMIT_SECONDS = 60.0

SEARCHING = ("auto", "ilp")
"""Solvers that take as long as they are given, and that a plan to start from helps."""

MINIMUM_SHARE = 0.25
"""Share of the time in which the lowest peak is looked for."""


def sweep(
    problem: Problem,
    *,
    solver: str = "auto",
    points: int = POINTS,
    budgets_bytes: Sequence[int] | None = None,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> tuple[Solution, ...]:
    """Solve for many budgets, from the lowest peak that the solver reaches to the plain peak.

    Args:
        problem: the problem.
        solver: a name in `SOLVERS`.
        points: how many budgets, both ends included, evenly spaced in bytes; at least 2.
        budgets_bytes: budgets to take instead, besides both ends; one that the solver cannot meet is left out.
        time_limit_seconds: for all budgets together, by ``auto`` and ``ilp``. A budget whose turn has not come by
            then, the lowest last, gets the better of what the instant solvers find, some tenths of a second each,
            and the plan of the budget below it. The other solvers take what they take.

    Returns:
        Solutions from the plain one, which is always the first, to the minimum. Each peaks lower and costs more
        than the one before it; only the second may cost nothing, as the plain one does. Budgets that end in the
        same plan share a solution.

    Raises:
        BackendError: ``ilp`` was asked, and all backends crash or answer nonsense.
        BudgetError: fewer than 2 points, or a budget that is not a positive int.
        InvalidProblem: the problem requires calls to be recomputed, so that the plain plan is none of its plans.
        UnknownSolver: there is no solver of that name.

    Example:
        >>> from autockpt.solvers import Candidate, Call, Problem, Save, Step, Tensor, sweep
        >>> problem = Problem(
        ...     steps=(Step(name="forward", base_bytes=10), Step(name="backward", base_bytes=4)),
        ...     calls=(Call(name="", parent=-1, stop=2), Call(name="h#0", parent=0, stop=2)),
        ...     tensors=(Tensor(bytes=8, free_step=1, saves=(Save(call=1, until=2),)),),
        ...     candidates=(Candidate(name="h#0", start=1, stop=2, length=1, recompute_seconds=0.1),),
        ... )
        >>> [(solution.peak_bytes, solution.recompute_seconds) for solution in sweep(problem)]
        [(12, 0), (10, 0.1)]

    As exact as the solver; as many of its searches as there are budgets.
    """
    deadline = time.perf_counter() + time_limit_seconds
    named(solver)
    if points < 2:
        raise BudgetError(f"a sweep has at least 2 points, the plain peak and the minimum; got {points!r}")
    for budget_bytes in budgets_bytes or ():
        check_budget(budget_bytes)
    if problem.required:
        names = ", ".join(problem.calls[call].name for call in problem.required)
        raise InvalidProblem(f"a sweep begins with the plain plan, and this problem requires recomputing {names}")
    ledger = Ledger.of(problem)
    plain_bytes = ledger.peak(())
    backends = Backends.of() if solver in SEARCHING else Backends(left=[])
    warm: tuple[Instants, Plan] | None = None
    if backends.left:
        until = deadline - (1 - MINIMUM_SHARE) * time_limit_seconds
        instants = Instants.of(ledger)
        start = instants.best(0).plan
        warm = instants, lower_peak(ledger, start, budget_bytes=0, deadline=until, backends=backends)[0]
    lowest_bytes = _lowest_bytes(problem, solver) if warm is None else ledger.peak(warm[1])
    if budgets_bytes is None:
        step_bytes = (plain_bytes - lowest_bytes) / (points - 1)
        budgets_bytes = [lowest_bytes + int(i * step_bytes) for i in range(points)]
    budgets = sorted({b for b in (lowest_bytes, *budgets_bytes) if lowest_bytes <= b < plain_bytes})
    if warm is None:
        found = [*_solved(problem, solver, budgets)]
    else:
        found = [*_searched(*warm, budgets, deadline, backends, solver)]
        if solver == "ilp" and not backends.left:
            raise all_failed(backends)
    return _undominated(judged(problem, (), solver="none"), found)


def _searched(
    instants: Instants, lowest: Plan, budgets: Sequence[int], deadline: float, backends: Backends, solver: str
) -> Iterator[Solution]:
    """Upwards for plans to start from, then downwards to improve them, each in an equal share of the time left."""
    ledger = instants.ledger
    starts: list[Plan] = []
    for budget_bytes in budgets:
        near = starts[-1] if starts else lowest
        starts.append(best_plan(ledger, [instants.best(budget_bytes).plan, near], budget_bytes, trimmed=True))
    for i in range(len(budgets) - 1, -1, -1):
        until = time.perf_counter() + (deadline - time.perf_counter()) / (i + 1)
        yield search(ledger, starts[i], budget_bytes=budgets[i], deadline=until, backends=backends, asked=solver)


def _solved(problem: Problem, solver: str, budgets: Iterable[int]) -> Iterator[Solution]:
    """One budget at a time, without those that the solver cannot meet."""
    for budget_bytes in budgets:
        with suppress(Infeasible):
            yield named(solver)(problem, budget_bytes)


def _lowest_bytes(problem: Problem, solver: str) -> int:
    """Lowest peak that a solver reaches."""
    try:
        return named(solver)(problem, 0).peak_bytes
    except Infeasible as error:
        return error.minimum_bytes


def _undominated(plain: Solution, found: Iterable[Solution]) -> tuple[Solution, ...]:
    """The plain solution, and those of the others that no other beats, by falling peak."""
    kept: list[Solution] = []
    for solution in sorted(found, key=lambda each: (each.peak_bytes, each.recompute_seconds, len(each.chosen))):
        if not kept or solution.recompute_seconds < kept[-1].recompute_seconds:
            kept.append(solution)
    return (plain, *reversed(kept))
