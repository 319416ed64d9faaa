"""HiGHS, called through PuLP. No other module imports either.

No answer is trusted: its values must keep to the rows, and `ilp` refuses an answer that a judged plan contradicts.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import BackendError

TOLERANCE = 1e-3  # by how much an answer may break a row. All programmes are scaled to 1000, and HiGHS keeps to 1e-6
EARLY = 0.35  # HiGHS has failed if it ends without an answer before this share of its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What HiGHS says: it found an optimum, it has values, it proved that there are none; and a bound on the goal."""

    solved: bool
    feasible: bool
    infeasible: bool
    bound: float | None


def pulp_module() -> Any:
    """Import PuLP in a thread of its own, so that it keeps no frame of the caller alive.

    Some of its modules keep exceptions that they caught while they were imported. Their tracebacks hold every frame
    that was on the stack of the importing thread, so a model and its batch would live as long as the process.
    """
    if "pulp" not in sys.modules:
        thread = threading.Thread(target=importlib.import_module, args=("pulp",))
        thread.start()
        thread.join()
    return importlib.import_module("pulp")


def minimising(name: str) -> Any:
    """Make a `pulp.LpProblem` that is to be minimised, without rows."""
    return _problem()(name, pulp_module().LpMinimize)


def solve(
    lp: Any,
    *,
    seconds: float,
    whole: bool,
    near: float = 0.0,
    start: dict[str, float] | None = None,
    more: Sequence[Any] = (),
    presolve: bool = True,
) -> Outcome:
    """Let HiGHS solve a `pulp.LpProblem` that is to be minimised, and is scaled to 1000.

    A problem may be solved again with `more` rows, if nothing else is new: HiGHS goes on from where it was.

    Args:
        lp: the problem; values, prices and status are written into it.
        seconds: time limit; it may take a little longer.
        whole: integer programme; otherwise its linear relaxation.
        near: share of the goal within which an integer programme counts as solved.
        start: values of variables by name, to begin an integer search with.
        more: rows (each a sum of at most so much) that are new since it was solved before.
        presolve: whether HiGHS may presolve: then it does not go on from where it was.

    Returns:
        What HiGHS found.

    Raises:
        BackendError: HiGHS cannot be loaded, it raised, its values break the problem, or it gave up with time left.
    """
    pulp = pulp_module()
    if not pulp.HiGHS(msg=False).available():
        raise BackendError("HiGHS cannot be loaded (pip install highspy)")
    began, limit = time.perf_counter(), max(seconds, 0.01)
    try:
        options = {"mip": whole, "msg": False, "gapRel": near, "timeLimit": limit}
        lp.solve(_solver()(start, more, presolve="choose" if presolve else "off", **options))
        found = _found(pulp, lp, whole=whole, near=near)
        broken = found.feasible and not (math.isfinite(found.goal) and lp.valid(TOLERANCE))
    except Exception as error:  # whatever comes out of a foreign library or a broken installation
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise BackendError(f"HiGHS failed ({said})") from error
    # No programme of ours is unbounded: no cost, and no level, is below zero.
    answered = found.feasible or found.infeasible or found.values
    if not answered and time.perf_counter() - began < EARLY * limit:
        raise nonsense(f"no answer, long before its {limit:.3g} seconds were up")
    if broken:
        raise nonsense("values that break the programme it was given")
    if found.feasible:
        _refuse_bound_above(found.goal, found.bound)
    known = found.bound if math.isfinite(found.bound) else None
    return Outcome(solved=found.solved, feasible=found.feasible, infeasible=found.infeasible, bound=known)


class _Read(NamedTuple):
    """What HiGHS has left in a problem: as in `Outcome`, whether it had values as its time was up, and its figures."""

    solved: bool
    feasible: bool
    infeasible: bool
    values: bool
    goal: float
    bound: float


def _found(pulp: Any, lp: Any, *, whole: bool, near: float) -> _Read:
    """Read what HiGHS has left in a problem; arguments as for `solve`."""
    solved = lp.sol_status == pulp.LpSolutionOptimal
    info = lp.solverModel.getInfo()
    # Out of time PuLP says "integer feasible", also where there are no values.
    values = lp.sol_status == pulp.LpSolutionIntegerFeasible and info.primal_solution_status == 2
    feasible = solved or (whole and values)
    goal = float(pulp.value(lp.objective)) if feasible else math.inf
    bound = float(info.mip_dual_bound) if whole else goal
    if solved and bound == -math.inf:  # where HiGHS (seen in 1.15) solves it from a start without a search
        bound = goal * (1 - near)
    return _Read(solved, feasible, lp.status == pulp.LpStatusInfeasible, values, goal, bound)


def _refuse_bound_above(goal: float, bound: float) -> None:
    """Refuse a lower bound that lies above the solution that was found."""
    if bound > goal + TOLERANCE * max(abs(goal), 1.0):
        raise nonsense(f"a bound of {bound:g} above its own solution of {goal:g}")


def nonsense(what: str) -> BackendError:
    """Make the error for an impossible answer of HiGHS."""
    return BackendError(f"HiGHS answered nonsense ({what})")


@functools.cache
def _problem() -> Any:
    """PuLP's problem, which looks for its variables in all rows only where a row is new since it last did."""

    class Remembering(pulp_module().LpProblem):  # type: ignore[misc]  # PuLP has no types
        def __init__(self, name: str, sense: int) -> None:
            super().__init__(name, sense)
            self.found: list[Any] = []

        def addConstraint(self, constraint: Any, name: str | None = None) -> None:  # noqa: N802  # as PuLP names it
            super().addConstraint(constraint, name)
            self.found = []

        def variables(self) -> list[Any]:
            self.found = self.found or super().variables()
            return self.found

    return Remembering


@functools.cache
def _solver() -> Any:
    """PuLP's interface to HiGHS, which keeps HiGHS's model from one solve to the next, and takes a start."""
    pulp, highspy = pulp_module(), importlib.import_module("highspy")

    class Warm(pulp.HiGHS):  # type: ignore[misc, name-defined]  # PuLP has no types
        def __init__(self, start: dict[str, float] | None, more: Sequence[Any], **options: Any) -> None:
            super().__init__(**options)
            self.start, self.more = start, more

        def createAndConfigureSolver(self, lp: Any) -> None:  # noqa: N802  # as PuLP names it
            if lp.solverModel is None:
                super().createAndConfigureSolver(lp)
            else:  # HiGHS counts the time of all its runs
                lp.solverModel.setOptionValue("time_limit", lp.solverModel.getRunTime() + self.timeLimit)

        def buildSolverModel(self, lp: Any) -> None:  # noqa: N802
            if not lp.solverModel.getNumRow():
                super().buildSolverModel(lp)
                return
            for row in self.more:
                row.index = lp.solverModel.getNumRow()
                terms = list(row.items())
                index, weight = [variable.index for variable, _ in terms], [w for _, w in terms]
                lp.solverModel.addRow(-highspy.kHighsInf, -row.constant, len(terms), index, weight)

        def callSolver(self, lp: Any) -> None:  # noqa: N802
            if self.start is not None:
                values = highspy.HighsSolution()
                values.col_value = [self.start.get(variable.name, 0.0) for variable in lp.variables()]
                lp.solverModel.setSolution(values)
            lp.solverModel.run()

    return Warm
