"""The reverse question: the lowest peak within a limit of recompute seconds.

`auto` and `ilp` solve the programme of `model` with the peak as its goal and the seconds as a row, from the lowest
instant plan that is cheap enough, and then look for the cheapest plan that has the peak found. The other solvers are
asked for one budget after the other:

    peak      lowest ──── too costly ────┤ low   middle   best ├──── allowed ──── cheapest plan

The middle is solved for, and replaces `low` or `best`, until they meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..common import SECONDS, best_plan, judged, patient
from ..deadline import Deadline
from ..errors import BudgetError, Infeasible, TooCostly
from ..judge import Judge
from ..pins import as_demands, highest_bytes
from ..plans.instant import Instants
from ..problem import Problem, Solution
from ..programme.ilp import CLOSE, UNPROVEN, lower_peak, search
from ..registry import SEARCHING, named

COARSE = 1 / 64  # bisecting with instant plans ends at this share of the way from the lowest peak to the highest
FINE = 1 / 2048  # bisecting with another solver ends at this share: recorded bytes repeat themselves no better

LOOKING_SHARE = 0.6
"""Share of the time for finding the lowest peak; the search for a cheaper plan with that peak gets the rest."""

LATE = "it was not proven in time that no lower peak costs as little"


def least_peak(
    problem: Problem, *, most_seconds: float = math.inf, solver: str = "auto", seconds: float = SECONDS
) -> Solution:
    """Choose what to recompute so that the peak gets as low as it can, within so many recompute seconds.

    Args:
        problem: the problem.
        most_seconds: what a plan may cost; infinity for the lowest peak that the solver reaches.
        solver: a name in `SOLVERS`.
        seconds: after so many, the best plan found is returned; its notes tell what was not proven.

    Returns:
        The plan with the lowest peak, and the cheapest of those found that have it.

    Raises:
        BackendError: ``ilp`` was asked, and HiGHS cannot be loaded or fails.
        BudgetError: the seconds are negative, or not a number.
        InvalidProblem: no plan recomputes all calls that the problem requires.
        TooCostly: each plan of this solver that recomputes what the problem requires costs more.
        UnknownSolver: there is no solver of that name.

    Example:
        >>> from autockpt.solvers import Candidate, Call, Problem, Save, Step, Tensor, least_peak
        >>> problem = Problem(
        ...     steps=(Step(name="forward", base_bytes=10), Step(name="backward", base_bytes=4)),
        ...     calls=(Call(name="", parent=-1, stop=2), Call(name="h#0", parent=0, stop=2)),
        ...     tensors=(Tensor(bytes=8, free_step=1, saves=(Save(call=1, until=2),)),),
        ...     candidates=(Candidate(name="h#0", start=1, stop=2, length=1, recompute_seconds=0.1),),
        ... )
        >>> least_peak(problem, most_seconds=0.05).peak_bytes, least_peak(problem).peak_bytes
        (12, 10)

    As exact as the solver, if given time: `auto` and `ilp` are exact, the others up to `FINE`.
    """
    return least_peak_until(problem, most_seconds=most_seconds, solver=solver, deadline=Deadline.after(seconds))


def least_peak_until(problem: Problem, *, most_seconds: float, solver: str, deadline: Deadline) -> Solution:
    """Choose so that the peak gets as low as it can, and be done by a deadline; see `least_peak`."""
    named(solver)
    if not most_seconds >= 0:
        raise BudgetError(f"a plan costs 0 seconds or more, and at most {most_seconds!r} were asked for")
    problem, top_bytes = as_demands(problem), highest_bytes(problem)
    if solver in SEARCHING:
        return _searched(problem, top_bytes, most_seconds, solver, deadline)

    def ask(budget_bytes: int) -> Solution:
        try:
            return named(solver)(problem, budget_bytes, deadline=deadline)
        except Infeasible as error:
            return named(solver)(problem, error.minimum_bytes, deadline=deadline)

    best = _asked(ask, top_bytes, most_seconds, FINE, deadline)
    if not _allowed(best, most_seconds):
        raise _too_costly(best, most_seconds, solver)
    return best


def _searched(problem: Problem, top_bytes: int, most_seconds: float, solver: str, deadline: Deadline) -> Solution:
    """From the instant plans: lower the peak, then find the cheapest plan that has it."""
    instants = Instants(Judge(problem), deadline)
    columns, judge = instants.columns, instants.columns.judge

    def instant(budget_bytes: int) -> Solution:
        plan, name = instants.best(budget_bytes)
        return judged(problem, plan, solver=name)

    start = _asked(instant, top_bytes, most_seconds, COARSE, patient(judge, deadline))
    if not _allowed(start, most_seconds):
        start = search(columns, (start.chosen, start.solver), top_bytes, deadline=deadline, asked=solver)
    if not _allowed(start, most_seconds):
        raise _too_costly(start, most_seconds, solver)
    notes: list[str] = []
    until = deadline.share(LOOKING_SHARE)
    plan, proven = lower_peak(
        columns, start.chosen, 0, most_seconds=most_seconds, deadline=until, asked=solver, notes=notes
    )
    peak_bytes = judge.peak(plan)
    known = dict.fromkeys((plan, start.chosen, instants.best(peak_bytes)[0]), start.solver)
    best = best_plan(judge, known, peak_bytes)
    found = search(columns, best, peak_bytes, deadline=deadline, asked=solver)
    unproven = UNPROVEN if math.isinf(most_seconds) else LATE
    notes = [*notes, *found.notes, *([] if proven else [unproven])]
    return replace(found, notes=tuple(dict.fromkeys(notes)))


def _asked(
    ask: Callable[[int], Solution], top_bytes: int, most_seconds: float, share: float, deadline: Deadline
) -> Solution:
    """Ask for one budget after the other; return the best plan, or the cheapest one if all cost too much.

    Bisects between a budget whose plan is too costly and the best plan, until they meet or time runs out.
    """
    lowest = ask(0)
    if _allowed(lowest, most_seconds):
        return lowest
    best, low_bytes = ask(top_bytes), lowest.peak_bytes
    grain_bytes = max(int(share * (best.peak_bytes - low_bytes)), 1)
    while _allowed(best, most_seconds) and best.peak_bytes - low_bytes > grain_bytes and not deadline.passed:
        middle_bytes = (low_bytes + best.peak_bytes) // 2
        found = ask(middle_bytes)
        if found.peak_bytes <= middle_bytes and _allowed(found, most_seconds):
            best = found
        else:
            low_bytes = middle_bytes
    return best


def _allowed(solution: Solution, most_seconds: float) -> bool:
    return solution.recompute_seconds <= most_seconds * (1 + CLOSE)


def _too_costly(cheapest: Solution, most_seconds: float, solver: str) -> TooCostly:
    least_seconds, chosen = cheapest.recompute_seconds, cheapest.chosen
    return TooCostly(most_seconds=most_seconds, least_seconds=least_seconds, solver=solver, chosen=chosen)
