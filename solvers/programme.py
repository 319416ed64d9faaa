"""The integer programme in PuLP, solved by HiGHS where it is installed, else by CBC. Nothing else imports PuLP.

Sizes are divided by the largest sum and costs by the largest cost, to 1000 each, so that the tolerances of
the solvers (about 1e-6) are about 1e-9 of the whole, and multiplying all bytes by a constant changes nothing.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .formulation import Floats, Formulation

__all__ = ["Answer", "Backend", "Programme", "default_backend", "pulp_module"]

Backend = Literal["highs", "cbc"]

SCALE = 1000.0

CBC_SHARE = 0.7
"""CBC looks at its clock between cuts, which may take a second: give it this share of the time."""

CBC_DIGIT = 1e-3
"""Last digit of the bound in CBC's log."""

CBC_BOUND = re.compile(r"^Lower bound:\s+(\S+)$", re.MULTILINE)


def pulp_module() -> Any:
    """Import PuLP where no frame of the caller's can be caught.

    Some of its modules keep the exceptions that they caught while they were imported, with the tracebacks, and so
    every frame that was then on the stack of the thread: a model and its batch would live as long as the process.
    """
    if "pulp" not in sys.modules:
        thread = threading.Thread(target=importlib.import_module, args=("pulp",))
        thread.start()
        thread.join()
    return importlib.import_module("pulp")


def default_backend() -> Backend | None:
    """HiGHS if ``highspy`` can be imported, else CBC if PuLP has one for this machine, else None."""
    pulp = pulp_module()

    if pulp.HiGHS(msg=False).available():
        return "highs"
    return "cbc" if pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path).available() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solver says, before the judge has a word.

    Attributes:
        outcome: ``optimal`` and ``infeasible`` are proven, up to the solver's tolerances.
        values: per column of the formulation; None if there is no solution.
        bound: no solution of these rows and columns has a lower goal; None if not known.
        reduced_cost: per candidate column, also those left out; only for a relaxation solved to the end.
    """

    outcome: Literal["optimal", "feasible", "infeasible", "unknown"]
    values: Floats | None = None
    bound: float | None = None
    reduced_cost: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """``sum(weights × columns) − over ≤ rhs``, or ``= rhs`` and without `over`."""

    columns: npt.NDArray[np.intp]
    weights: Floats
    rhs: float
    equal: bool = False
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Programme:
    """A formulation with a goal.

    Attributes:
        form: columns and entries.
        limit_bytes: the peak that is allowed, or, if the goal is the peak, below which it need not go.
        goal: minimise the recompute seconds, or the bytes above the limit.
        backend: who solves it.
        near: share of the goal within which an integer programme counts as solved.
    """

    form: Formulation
    limit_bytes: int
    goal: Literal["seconds", "peak"]
    backend: Backend
    near: float = 0.0

    def solve(
        self,
        steps: Sequence[int],
        columns: Iterable[int],
        *,
        whole: bool,
        deadline: float,
        margin_bytes: int = 0,
    ) -> Answer:
        """Solve it with level rows for some steps and with some candidate columns.

        Args:
            steps: steps whose level must stay within the limit.
            columns: candidate columns that may be chosen.
            whole: integer programme; otherwise its linear relaxation, with reduced costs.
            deadline: on the clock of `time.perf_counter`; then the solver stops.
            margin_bytes: keep so far below the limit.

        Returns:
            Values, and the goal in seconds or bytes.
        """
        pulp = pulp_module()

        form, n_candidates = self.form, len(self.form.active)
        costs = np.array([form.ledger.problem.candidates[c].recompute_seconds for c in form.active])
        cost_unit = float(costs.max(initial=0.0)) / SCALE or 1.0
        kept = (form.entry_column >= n_candidates) & ~np.isin(form.entry_column, list(form.closed))
        kept_bytes = int(form.entry_bytes.sum(where=kept))
        size_unit = (kept_bytes or int(form.entry_bytes.sum())) / SCALE or 1.0
        over_peak = self.goal == "peak"

        lp = pulp.LpProblem("autockpt", pulp.LpMinimize)
        # Skips are whole wherever candidates are. Said in so many words, it keeps HiGHS (seen in 1.10 and 1.15)
        # from presolve steps for mixed columns that cut off the optimum of tiny problems.
        kind = pulp.LpInteger if whole else pulp.LpContinuous
        column: dict[int, Any] = {
            c: lp.add_variable(f"x{c}", 0, 1, kind)
            for c in [*columns, *range(n_candidates, len(form.arcs))]
            if c not in form.closed
        }
        column.update({c: lp.add_variable(f"a{c}", 0, 1) for c in range(len(form.arcs), form.n_columns)})
        over = lp.add_variable("over", 0)
        lp.setObjective(
            pulp.LpAffineExpression(
                [(over, 1.0)] if over_peak else [(column[c], costs[c] / cost_unit) for c in columns]
            )
        )
        rows: list[tuple[Any, _Row]] = []
        for row in (*_flows(form), *_alive(form), *self._levels(steps, size_unit, margin_bytes)):
            terms = [
                (column[c], weight)
                for c, weight in zip(row.columns.tolist(), row.weights.tolist(), strict=True)
                if c in column
            ]
            if row.over and over_peak:
                terms.append((over, -1.0))
            sense = pulp.LpConstraintEQ if row.equal else pulp.LpConstraintLE
            constraint = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=row.rhs)
            lp.addConstraint(constraint)
            rows.append((constraint, row))

        unit = size_unit if over_peak else cost_unit
        bound = self._run(lp, whole, deadline - time.perf_counter())
        if bound is not None:
            bound *= unit
        if lp.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            # CBC's "Integer infeasible" reaches `status`, but not `sol_status`.
            return Answer(outcome="infeasible" if lp.status == pulp.LpStatusInfeasible else "unknown", bound=bound)
        values = np.zeros(form.n_columns)
        values[list(column)] = [variable.varValue or 0.0 for variable in column.values()]
        if lp.sol_status == pulp.LpSolutionIntegerFeasible:  # out of time; `status` says optimal all the same
            return Answer(outcome="feasible", values=values, bound=bound)
        reduced = None
        if not whole:
            reduced = np.zeros(form.n_columns)
            reduced[:n_candidates] = 0.0 if over_peak else costs / cost_unit
            for constraint, row in rows:
                reduced[row.columns] -= constraint.pi * row.weights
            reduced = reduced[:n_candidates] * unit
        if whole and self.near and bound is not None:
            return Answer(outcome="feasible", values=values, bound=bound)
        bound = float(pulp.value(lp.objective)) * unit
        return Answer(outcome="optimal", values=values, bound=bound, reduced_cost=reduced)

    def _levels(self, steps: Sequence[int], size_unit: float, margin_bytes: int) -> Iterator[_Row]:
        form, grain = self.form, self.form.grain_bytes
        for step in steps:
            weights = form.row(step)
            columns = np.flatnonzero(weights)
            room_bytes = self.limit_bytes - margin_bytes - int(form.base_bytes[step])
            # Sizes are whole grains, so half a grain on top changes nothing but the tolerance.
            rhs = (room_bytes // grain + 0.5) * grain if self.goal == "seconds" else float(room_bytes)
            yield _Row(columns=columns, weights=weights[columns] / size_unit, rhs=rhs / size_unit, over=True)

    def _run(self, lp: Any, whole: bool, time_limit_seconds: float) -> float | None:
        """Solve `lp`; returns the bound of an integer search that ended early, None if there is none."""
        pulp = pulp_module()

        limit = max(time_limit_seconds, 0.01)
        if self.backend == "highs":
            lp.solve(pulp.HiGHS(mip=whole, msg=False, gapRel=self.near, timeLimit=limit))
            bound = float(lp.solverModel.getInfo().mip_dual_bound) if whole else math.inf
            return bound if math.isfinite(bound) else None
        with tempfile.TemporaryDirectory() as folder:  # CBC tells its bound only to its log
            log = Path(folder, "cbc.log")
            # PULP_CBC_CMD warns that it is deprecated; this is the same binary.
            path = pulp.PULP_CBC_CMD.pulp_cbc_path
            limit *= CBC_SHARE
            near = self.near
            lp.solve(pulp.COIN_CMD(path=path, mip=whole, msg=False, gapRel=near, timeLimit=limit, logPath=str(log)))
            said = CBC_BOUND.search(log.read_text()) if whole else None
        return float(said[1]) - CBC_DIGIT if said else None


def _flows(form: Formulation) -> Iterator[_Row]:
    """As many arcs leave a point as arrive there; one leaves the first."""
    leaving: list[list[int]] = [[] for _ in range(form.n_points)]
    arriving: list[list[int]] = [[] for _ in range(form.n_points)]
    for column, (first, last) in enumerate(form.arcs):
        leaving[first].append(column)
        arriving[last].append(column)
    for point in range(form.n_points - 1):
        columns = np.array(leaving[point] + arriving[point], dtype=np.intp)
        weights = np.repeat([1.0, -1.0], [len(leaving[point]), len(arriving[point])])
        yield _Row(columns=columns, weights=weights, rhs=0.0 if point else 1.0, equal=True)


def _alive(form: Formulation) -> Iterator[_Row]:
    """An alive column is at least each of its forms."""
    for i, forms in enumerate(form.alive):
        for one in forms:
            columns = np.array([*one, len(form.arcs) + i], dtype=np.intp)
            yield _Row(columns=columns, weights=np.append(np.ones(len(one)), -1.0), rhs=0.0)
