"""One signature for every solver, and the table that names them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from . import articulation, auto, block, chain, ilp, plain, speed, sqrt, uniform
from .errors import BudgetError, UnknownSolver
from .families import TIME_LIMIT_SECONDS
from .pins import demand
from .problem import Problem, Solution


class Solver(Protocol):
    """What every solver is: a function from a problem and a budget to a judged solution."""

    def __call__(self, problem: Problem, budget_bytes: int, *, time_limit_seconds: float = ...) -> Solution:
        """Solve `problem` within `budget_bytes`."""
        ...


SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {
        "all": plain.solve_all,
        "articulation": articulation.solve,
        "auto": auto.solve,
        "block": block.solve,
        "chain": chain.solve,
        "ilp": ilp.solve,
        "none": plain.solve_none,
        "speed": speed.solve,
        "sqrt": sqrt.solve,
        "uniform": uniform.solve,
    }
)
"""Every solver by its name, as `solver=` takes it."""


def solve(
    problem: Problem, budget_bytes: int, *, solver: str = "auto", time_limit_seconds: float = TIME_LIMIT_SECONDS
) -> Solution:
    """Choose what to recompute so that the peak stays within the budget.

    Every solver recomputes what the problem requires; what a family of plans lacks of it is added to its plans.

    Args:
        problem: steps, tensors and candidates of one model.
        budget_bytes: highest peak allowed.
        solver: a name in `SOLVERS`.
        time_limit_seconds: after so long the best plan found is returned, with status ``FEASIBLE``.

    Returns:
        The solution, with the judge's peak and cost.

    Raises:
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
    check_budget(budget_bytes)
    return named(solver)(demand(problem, budget_bytes), budget_bytes, time_limit_seconds=time_limit_seconds)


def check_budget(budget_bytes: int) -> None:
    """Refuse what is no positive number of bytes.

    Raises:
        BudgetError: the budget is not a positive int.
    """
    if type(budget_bytes) is not int or budget_bytes <= 0:  # a bool is an int, and no budget
        raise BudgetError(f"a budget is a positive number of bytes as an int, got {budget_bytes!r}")


def named(solver: str) -> Solver:
    """Look a solver up.

    Raises:
        UnknownSolver: there is no solver of that name.
    """
    if solver not in SOLVERS:
        near = difflib.get_close_matches(str(solver), SOLVERS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownSolver(f"no solver is called {solver!r}; {hint}there are {', '.join(sorted(SOLVERS))}")
    return SOLVERS[solver]
