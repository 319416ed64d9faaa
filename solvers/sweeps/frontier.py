"""One problem under many budgets: the plans that no other beats in both peak and seconds.

    minimum ──b──b──b──b──▶ plain        a plan that fits one budget fits the next, and starts its search

The budgets share the arrays of the problem and one deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ..common import best_plan, judged
from ..deadline import Deadline
from ..errors import BudgetError, Infeasible, InvalidProblem
from ..judge import Judge, simulate
from ..plans.instant import Instants
from ..problem import Problem, Solution
from ..programme.ilp import lower_peak, search
from ..registry import SEARCHING, check_budget, named

POINTS = 20

SECONDS = 60.0

MINIMUM_SHARE = 0.25  # share of the time for finding the lowest peak


def sweep(
    problem: Problem,
    *,
    solver: str = "auto",
    points: int = POINTS,
    budgets_bytes: Sequence[int] | None = None,
    seconds: float = SECONDS,
) -> tuple[Solution, ...]:
    """Solve for many budgets, from the lowest peak that the solver reaches to the plain peak.

    Args:
        problem: the problem.
        solver: a name in `SOLVERS`.
        points: how many budgets, both ends included, evenly spaced in bytes; at least 2.
        budgets_bytes: budgets to take instead; both ends are added. A budget that the solver cannot meet is left out.
        seconds: for all budgets together, by ``auto`` and ``ilp``. Budgets are solved from the lowest up; one that is
            not reached in time gets an instant plan, or that of the budget below it. Other solvers may take longer.

    Returns:
        Solutions from the plain one, which is always the first, to the minimum. Each peaks lower and costs more
        than the one before it; only the second may cost nothing, as the plain one does. Budgets that end in the
        same plan share a solution.

    Raises:
        BackendError: ``ilp`` was asked, and HiGHS cannot be loaded or fails.
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
    deadline = Deadline.after(seconds)
    return sweep_until(problem, solver=solver, points=points, budgets_bytes=budgets_bytes, deadline=deadline)


def sweep_until(
    problem: Problem, *, solver: str, points: int, budgets_bytes: Sequence[int] | None, deadline: Deadline
) -> tuple[Solution, ...]:
    """Solve for many budgets, and be done by a deadline; see `sweep`."""
    named(solver)
    if points < 2:
        raise BudgetError(f"a sweep has at least 2 points, the plain peak and the minimum; got {points!r}")
    for budget_bytes in budgets_bytes or ():
        check_budget(budget_bytes)
    if problem.required:
        names = ", ".join(problem.calls[call].name for call in problem.required[:6])
        raise InvalidProblem(f"a sweep begins with the plain plan, and this problem requires recomputing {names}")
    find = _searched if solver in SEARCHING else _solved
    return _undominated(judged(problem, (), solver="none"), find(problem, solver, points, budgets_bytes, deadline))


Budgets = Sequence[int] | None


def _searched(problem: Problem, solver: str, points: int, asked: Budgets, deadline: Deadline) -> Iterator[Solution]:
    """Solve upwards: each search starts from the plan of the budget below, and gets an equal share of the time left."""
    instants = Instants(Judge(problem), deadline)
    columns, judge = instants.columns, instants.columns.judge
    until = deadline.share(MINIMUM_SHARE)
    below, _ = lower_peak(columns, instants.best(0)[0], 0, deadline=until, asked=solver, notes=[])
    budgets = _budgets(problem, judge.peak(below), points, asked)
    for i, budget_bytes in enumerate(budgets):
        deadline.tell("budget %d of %d", i + 1, len(budgets))
        instant, name = instants.best(budget_bytes)
        plan, _ = best_plan(judge, dict.fromkeys((instant, below), name), budget_bytes)
        until = deadline.share(1 / (len(budgets) - i))
        found = search(columns, (plan, name), budget_bytes, deadline=until, asked=solver)
        below = found.chosen
        yield found


def _solved(problem: Problem, solver: str, points: int, asked: Budgets, deadline: Deadline) -> Iterator[Solution]:
    """Solve one budget at a time, and leave out those that the solver cannot meet."""
    try:
        lowest_bytes = named(solver)(problem, 0, deadline=deadline).peak_bytes
    except Infeasible as error:
        lowest_bytes = error.minimum_bytes
    for budget_bytes in _budgets(problem, lowest_bytes, points, asked):
        with suppress(Infeasible):
            yield named(solver)(problem, budget_bytes, deadline=deadline)


def _budgets(problem: Problem, lowest_bytes: int, points: int, asked: Budgets) -> list[int]:
    """Those asked for, or evenly spaced ones, from the lowest peak to below the plain one."""
    plain_bytes = simulate(problem, ()).peak_bytes
    step_bytes = (plain_bytes - lowest_bytes) / (points - 1)
    evenly = [lowest_bytes + int(i * step_bytes) for i in range(points)]
    wanted = {lowest_bytes, *(evenly if asked is None else asked)}
    return sorted(b for b in wanted if lowest_bytes <= b < plain_bytes)


def _undominated(plain: Solution, found: Iterable[Solution]) -> tuple[Solution, ...]:
    """The plain solution, and those of the others that no other beats, by falling peak."""
    kept: list[Solution] = []
    for solution in sorted(found, key=lambda each: (each.peak_bytes, each.recompute_seconds, len(each.chosen))):
        if not kept or solution.recompute_seconds < kept[-1].recompute_seconds:
            kept.append(solution)
    return (plain, *reversed(kept))
