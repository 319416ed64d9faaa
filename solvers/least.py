"""The question turned round: the lowest peak that so many recompute seconds buy.

    peak      lowest ──── too costly ────┤ low   middle   best ├──── allowed ──── cheapest plan

The middle is solved for, and takes the place of one or the other, until they meet. The default first does so with
what the instant solvers find, and then looks below that with the integer programme, in steps that double.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from .backends import Backends
from .errors import BudgetError, Infeasible, TooCostly
from .families import TIME_LIMIT_SECONDS, Plan, best_plan, judged
from .ilp import UNPROVEN, all_failed, lower_peak, search
from .instant import Instants
from .ledger import Ledger
from .pins import demand, highest_bytes
from .problem import Problem, Solution
from .registry import named
from .sweep import MINIMUM_SHARE, SEARCHING

CLOSE = 1e-9
"""Costs that differ by less than this share are equal: it is what a ratio and back makes of a sum of seconds."""

STEP = 1 / 64
"""Share of the way from the lowest peak to the highest up to which the instant solvers look, and by which the integer
programme first looks below what they found."""

GRAIN = 1 / 2048
"""Share of that way up to which it looks: recorded bytes repeat themselves no better."""

LOOKING_SHARE = 0.75
"""Share of the time in which the lowest peak is looked for; a cheaper plan that has it gets the rest."""

TURN_SHARE = 1 / 3
"""Share of the time left that one budget gets."""

LATE = "it was not proven in time that no lower peak costs as little"


def least_peak(
    problem: Problem,
    *,
    most_seconds: float = math.inf,
    solver: str = "auto",
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> Solution:
    """Choose what to recompute so that the peak gets as low as it can, within so many recompute seconds.

    Args:
        problem: the problem.
        most_seconds: what a plan may cost; all that there are get to the lowest peak that the solver reaches.
        solver: a name in `SOLVERS`.
        time_limit_seconds: after so long the best plan found is returned; its notes tell what was not proven, for
            ``auto`` and ``ilp``, which take some tenths of a second for each of about ten budgets besides.

    Returns:
        The plan with the lowest peak, and the cheapest of those found that have it.

    Raises:
        AutockptError: ``ilp`` was asked, and what solves integer programmes is not installed or fails.
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

    As exact as the solver, up to `GRAIN`, if given time; as many of its searches as the peak has binary digits.
    """
    named(solver)
    if not most_seconds >= 0:
        raise BudgetError(f"a plan costs 0 seconds or more, and at most {most_seconds!r} were asked for")
    stated = demand(problem, 1)
    backends = Backends.of() if solver in SEARCHING else Backends(left=[])
    if not backends.left:
        return _asked(stated, highest_bytes(problem), most_seconds, solver, time_limit_seconds)
    found = _searched(stated, highest_bytes(problem), most_seconds, solver, time_limit_seconds, backends)
    if solver == "ilp" and not backends.left:
        raise all_failed(backends)
    return found


def _asked(problem: Problem, top_bytes: int, most_seconds: float, solver: str, time_limit_seconds: float) -> Solution:
    """One budget after the other, as the solver is."""
    deadline = time.perf_counter() + time_limit_seconds

    def ask(budget_bytes: int) -> Solution | None:
        try:
            return named(solver)(problem, budget_bytes)
        except Infeasible:
            return None

    try:
        lowest = named(solver)(problem, 0)
    except Infeasible as error:
        lowest = named(solver)(problem, error.minimum_bytes)
    if _allowed(lowest, most_seconds):
        return lowest
    top = named(solver)(problem, top_bytes)
    if not _allowed(top, most_seconds):
        raise _too_costly(top, most_seconds, solver)
    bracket = _Bracket(low_bytes=lowest.peak_bytes, best=top, most_seconds=most_seconds)
    bracket.narrow(ask, grain_bytes=int(GRAIN * (top.peak_bytes - lowest.peak_bytes)), deadline=deadline)
    return bracket.best


def _searched(
    problem: Problem,
    top_bytes: int,
    most_seconds: float,
    solver: str,
    time_limit_seconds: float,
    backends: Backends,
) -> Solution:
    """Each budget warm: from the plans of those before it."""
    ledger = Ledger.of(problem)
    instants = Instants.of(ledger)
    known: list[Plan] = [instants.best(0).plan]

    def best_known(budget_bytes: int) -> Solution:
        return judged(problem, best_plan(ledger, known, budget_bytes, trimmed=True), solver=solver)

    def instant(budget_bytes: int) -> Solution:
        known.append(instants.best(budget_bytes).plan)
        return best_known(budget_bytes)

    def improved(start: Solution, budget_bytes: int, limit_seconds: float) -> Solution:
        until = time.perf_counter() + limit_seconds
        found = search(ledger, start.chosen, budget_bytes=budget_bytes, deadline=until, backends=backends, asked=solver)
        known.append(found.chosen)
        return found

    began = time.perf_counter()
    until = began + (LOOKING_SHARE if math.isinf(most_seconds) else MINIMUM_SHARE) * time_limit_seconds
    lowest, proven = lower_peak(ledger, known[0], budget_bytes=0, deadline=until, backends=backends)
    known.append(lowest)
    left_seconds = began + time_limit_seconds - time.perf_counter()
    lowest_bytes = ledger.peak(known[-1])
    best = instant(lowest_bytes)
    if _allowed(best, most_seconds):
        cheapest = improved(best, best.peak_bytes, left_seconds)
        return cheapest if proven else replace(cheapest, notes=(*cheapest.notes, UNPROVEN))

    best = instant(top_bytes)
    if not _allowed(best, most_seconds):
        best = improved(best, top_bytes, left_seconds)
    if not _allowed(best, most_seconds):
        raise _too_costly(best, most_seconds, solver)
    way_bytes = best.peak_bytes - lowest_bytes
    rough = _Bracket(low_bytes=lowest_bytes, best=best, most_seconds=most_seconds)
    rough.narrow(instant, grain_bytes=int(STEP * way_bytes))

    looking = time.perf_counter() + LOOKING_SHARE * left_seconds

    def lower(budget_bytes: int) -> Solution:
        found = best_known(budget_bytes)
        if _allowed(found, most_seconds):
            return found
        return improved(found, budget_bytes, TURN_SHARE * max(looking - time.perf_counter(), 0.0))

    bracket = _Bracket(low_bytes=lowest_bytes - 1, best=rough.best, most_seconds=most_seconds)
    step_bytes, grain_bytes = max(int(STEP * way_bytes), 1), int(GRAIN * way_bytes)
    bracket.narrow(lower, step_bytes=step_bytes, grain_bytes=grain_bytes, deadline=looking)
    best = bracket.told()
    cheaper = improved(best, best.peak_bytes, (1 - LOOKING_SHARE) * left_seconds)
    return replace(cheaper, notes=tuple(dict.fromkeys((*best.notes, *cheaper.notes))))


@dataclass(slots=True, kw_only=True)
class _Bracket:
    """A search under way for the lowest peak that costs no more than is allowed.

    Attributes:
        low_bytes: a budget for which no such plan was found.
        best: the plan with the lowest peak that is allowed.
        most_seconds: what is allowed.
        late: whether time ran out, for all of it or for one of the budgets.
    """

    low_bytes: int
    best: Solution
    most_seconds: float
    late: bool = False

    def narrow(
        self,
        ask: Callable[[int], Solution | None],
        *,
        grain_bytes: int = 1,
        step_bytes: int | None = None,
        deadline: float = math.inf,
    ) -> None:
        """Solve for budgets between the two, by halves or, at first, by steps, until they meet or time runs out."""
        while self.best.peak_bytes - self.low_bytes > max(grain_bytes, 1):
            if time.perf_counter() >= deadline:
                self.late = True
                return
            middle = (self.low_bytes + self.best.peak_bytes) // 2
            if step_bytes is not None:
                middle = max(middle, self.best.peak_bytes - step_bytes)
                step_bytes *= 2
            found = ask(middle)
            if found is not None and found.peak_bytes <= middle and _allowed(found, self.most_seconds):
                self.best = found
            else:
                self.low_bytes = middle
                bound_seconds = None if found is None else found.lower_bound_seconds
                self.late |= bound_seconds is None or bound_seconds <= self.most_seconds

    def told(self) -> Solution:
        """The best plan, which says so where time ran out."""
        if not self.late:
            return self.best
        return replace(self.best, notes=(*self.best.notes, LATE))


def _allowed(solution: Solution, most_seconds: float) -> bool:
    return solution.recompute_seconds <= most_seconds * (1 + CLOSE)


def _too_costly(cheapest: Solution, most_seconds: float, solver: str) -> TooCostly:
    return TooCostly(
        most_seconds=most_seconds,
        least_seconds=cheapest.recompute_seconds,
        solver=solver,
        chosen=cheapest.chosen,
    )
