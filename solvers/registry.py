"""One signature for every solver, and the table that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from .common import MOST_TRIMMED, SECONDS, Plan, best_plan, infeasible, judged, patient
from .deadline import Deadline
from .errors import BudgetError
from .judge import Judge
from .names import counted
from .pins import as_demands, completed, highest_bytes
from .plans.articulation import articulation_plans
from .plans.baselines import BASELINES, BY_LAYERS, NAMED_PLANS, TRIMMED
from .plans.chain import chain_plans
from .problem import Problem, Solution
from .programme import ilp
from .units import shown


class Solver(Protocol):
    """What every solver is: a function from a problem and a budget to a judged solution."""

    def __call__(self, problem: Problem, budget_bytes: int, *, deadline: Deadline) -> Solution:
        """Solve `problem` within `budget_bytes`; raises `Infeasible` with the lowest peak reached."""
        ...


class Planner(Protocol):
    """What makes some plans for a budget."""

    def __call__(self, judge: Judge, budget_bytes: int, /, *, deadline: Deadline) -> Iterable[Plan]:
        """Yield plans, fewer once time is up."""
        ...


def _cheapest_of(name: str, plans: Planner, *, trimmed: bool = True) -> Solver:
    """The solver that takes the cheapest of some plans that fits."""

    def solve_by_plans(problem: Problem, budget_bytes: int, *, deadline: Deadline) -> Solution:
        judge = Judge(problem)
        until = patient(judge, deadline)
        deadline.tell("plans of solver %s", name)
        found = dict.fromkeys(completed(problem, plans(judge, budget_bytes, deadline=until)), name)
        plan, _ = best_plan(judge, found, budget_bytes, trimmed=MOST_TRIMMED if trimmed else 0, deadline=until)
        if judge.peak(plan) > budget_bytes:
            raise infeasible(problem, plan, budget_bytes=budget_bytes, solver=name)
        return judged(problem, plan, solver=name)

    return solve_by_plans


def _baseline(name: str, make: Callable[[Judge], Iterator[Plan]]) -> Solver:
    def plans(judge: Judge, _: int, *, deadline: Deadline) -> Iterable[Plan]:
        return deadline.first_of(make(judge))

    return _cheapest_of(name, plans, trimmed=name in TRIMMED)


SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {name: _baseline(name, make) for name, make in (*BASELINES.items(), *NAMED_PLANS.items())}
    | {
        "articulation": _cheapest_of("articulation", articulation_plans),
        "chain": _cheapest_of("chain", chain_plans),
        "ilp": ilp.solve,
        "auto": ilp.solve_auto,
    }
)
"""Every solver by its name, as `solver=` takes it. ``uniform:N`` and ``block:N`` are names, too, for N layers."""

SEARCHING = ("auto", "ilp")  # solvers that use all the time they are given, and start from a plan


def solve(problem: Problem, budget_bytes: int, *, solver: str = "auto", seconds: float = SECONDS) -> Solution:
    """Choose what to recompute so that the peak stays within the budget.

    Every solver recomputes what the problem requires; what its plans lack of it is added to them.

    Args:
        problem: steps, tensors and candidates of one model.
        budget_bytes: highest peak allowed.
        solver: a name in `SOLVERS`, or ``uniform:N`` or ``block:N``.
        seconds: after so many the best plan found is returned, with status ``FEASIBLE``.

    Returns:
        The solution, with the judge's peak and cost.

    Raises:
        BackendError: ``ilp`` was asked, and HiGHS cannot be loaded or fails.
        BudgetError: the budget is not a positive int.
        Infeasible: the solver finds no plan within the budget.
        InvalidProblem: no plan recomputes all calls that the problem requires.
        UnknownSolver: there is no solver of that name.

    Example:
        >>> from autockpt.solvers import Candidate, Call, Problem, Save, Step, Tensor, solve
        >>> problem = Problem(
        ...     steps=(Step(name="forward", base_bytes=10), Step(name="backward", base_bytes=4)),
        ...     calls=(Call(name="", parent=-1, stop=2), Call(name="h#0", parent=0, stop=2)),
        ...     tensors=(Tensor(bytes=8, free_step=1, saves=(Save(call=1, until=2),)),),
        ...     candidates=(Candidate(name="h#0", start=1, stop=2, length=1, recompute_seconds=0.1),),
        ... )
        >>> solve(problem, 12).chosen, solve(problem, 11).chosen
        ((), (0,))
    """
    return solve_until(problem, budget_bytes, solver=solver, deadline=Deadline.after(seconds))


def solve_until(problem: Problem, budget_bytes: int, *, solver: str, deadline: Deadline) -> Solution:
    """Choose what to recompute, and be done by a deadline; see `solve`."""
    check_budget(budget_bytes)
    if problem.required:  # no plan peaks above `highest_bytes`; a lower budget keeps sums within 64 bits
        problem, budget_bytes = as_demands(problem), min(budget_bytes, highest_bytes(problem))
    return named(solver)(problem, budget_bytes, deadline=deadline)


def check_budget(budget_bytes: int) -> None:
    """Raise `BudgetError` where a budget is no positive number of bytes."""
    if type(budget_bytes) is not int or budget_bytes <= 0:  # a bool is an int, and no budget
        raise BudgetError(f"a budget is a positive number of bytes as an int, got {shown(budget_bytes)}")


def named(solver: str) -> Solver:
    """Look a solver up; raises `UnknownSolver` with the nearest name."""
    given: object = solver  # users give whatever they like, and some of it has no hash
    if isinstance(given, str) and given in SOLVERS:
        return SOLVERS[given]
    family, number = counted(given)
    return _baseline(solver, lambda judge: BY_LAYERS[family](judge, number))
