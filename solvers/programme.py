"""The integer programme in PuLP, solved by HiGHS where it is installed, else by CBC. Nothing else imports PuLP.

Sizes are divided by the largest total and costs by the largest cost, to 1000 each, so that the tolerances of
the solvers (about 1e-6) are about 1e-9 of the whole, and multiplying all bytes by a constant changes nothing.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .errors import AutockptError
from .formulation import Floats, Formulation

__all__ = ["Answer", "Backend", "Programme", "default_backend"]

Backend = Literal["highs", "cbc"]

SCALE = 1000.0


def default_backend() -> Backend | None:
    """HiGHS if ``highspy`` can be imported, else CBC if PuLP has one for this machine, else None."""
    import pulp

    if importlib.util.find_spec("highspy") is not None:
        return "highs"
    return "cbc" if pulp.COIN_CMD(path=pulp.PULP_CBC_CMD.pulp_cbc_path).available() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solver says, in bytes above the floor or in seconds, before the judge has a word.

    Attributes:
        outcome: ``optimal`` means proven, up to the solver's tolerances.
        values: per column of the formulation; None if there is no solution.
        bound: no solution of these rows and columns has a lower goal; None if not known.
        reduced_cost: per candidate column, also those left out; only for a relaxation.
    """

    outcome: Literal["optimal", "feasible", "infeasible", "unknown"]
    values: Floats | None = None
    bound: float | None = None
    reduced_cost: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Programme:
    """A formulation with a goal.

    Attributes:
        form: columns, flows, pieces.
        limit_bytes: the peak that is allowed, or, if the goal is the peak, below which it need not go.
        goal: minimise the recompute seconds, or the peak.
        backend: who solves it.
    """

    form: Formulation
    limit_bytes: int
    goal: Literal["seconds", "peak"]
    backend: Backend

    def solve(
        self,
        steps: Sequence[int],
        columns: Iterable[int],
        *,
        whole: bool,
        time_limit_seconds: float,
        margin_bytes: int = 0,
        below: float | None = None,
    ) -> Answer:
        """Solve it with level rows for some steps and with some candidate columns.

        Args:
            steps: steps whose level must stay within the limit.
            columns: candidate columns that may be chosen.
            whole: integer programme; otherwise its linear relaxation, with reduced costs.
            time_limit_seconds: after so long the solver stops.
            margin_bytes: keep so far below the limit.
            below: only look for goals below this.
        """
        import pulp

        form, size, cost_unit = self.form, self._size_unit(), self._cost_unit()
        n_candidates = len(form.active)
        lp = pulp.LpProblem("autockpt", pulp.LpMinimize)
        category = pulp.LpInteger if whole else pulp.LpContinuous
        column: dict[int, Any] = {c: lp.add_variable(f"x{c}", 0, 1, category) for c in columns}
        for i in range(n_candidates, n_candidates + form.n_skips):
            column[i] = lp.add_variable(f"s{i}", 0, 1)
        alive = {k: lp.add_variable(f"h{k}", 0, 1) for k, forms in enumerate(form.forms) if len(forms) > 1}
        over = lp.add_variable("over", 0) if self.goal == "peak" else None

        def add(terms: Iterable[tuple[Any, float]], sense: int, rhs: float) -> Any:
            row = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=rhs)
            lp.addConstraint(row)
            return row

        goal = (
            [(variable, self._cost(c) / cost_unit) for c, variable in column.items() if c < n_candidates]
            if over is None
            else [(over, 1.0)]
        )
        lp.setObjective(pulp.LpAffineExpression(goal))
        flow_rows = [
            add(
                [(column[c], 1.0) for c in leaves if c in column] + [(column[c], -1.0) for c in arrives if c in column],
                pulp.LpConstraintEQ,
                0.0 if arrives else 1.0,
            )
            for leaves, arrives in form.flows
        ]
        form_rows = [
            [
                add(
                    [(column[c], 1.0) for c in one if c in column] + [(alive[k], -1.0)],
                    pulp.LpConstraintLE,
                    0.0,
                )
                for one in forms
            ]
            if len(forms) > 1
            else []
            for k, forms in enumerate(form.forms)
        ]
        level_rows = []
        for step in steps:
            columns_here, kinds_here = form.row(step)
            terms = [(column[c], columns_here[c] / size) for c in np.flatnonzero(columns_here).tolist() if c in column]
            terms += [(alive[k], kinds_here[k] / size) for k in np.flatnonzero(kinds_here).tolist()]
            room_bytes = self.limit_bytes - margin_bytes - int(form.base_bytes[step])
            if over is None:  # sizes are whole grains, so half a grain more changes nothing but the tolerance
                rhs = (room_bytes // form.grain_bytes + 0.5) * form.grain_bytes
            else:
                terms.append((over, -1.0))
                rhs = float(room_bytes)
            level_rows.append((add(terms, pulp.LpConstraintLE, rhs / size), columns_here))
        if below is not None and over is None:
            add(goal, pulp.LpConstraintLE, below / cost_unit)

        unit = cost_unit if over is None else size
        lp.solve(self._solver(whole, time_limit_seconds))
        solved = lp.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
        if not solved or any(variable.varValue is None for variable in column.values()):
            # CBC's "Integer infeasible" reaches `status`, but not `sol_status`.
            return Answer(outcome="infeasible" if lp.status == pulp.LpStatusInfeasible else "unknown")
        values = np.zeros(n_candidates + form.n_skips)
        for c, variable in column.items():
            values[c] = variable.varValue
        optimal = lp.sol_status == pulp.LpSolutionOptimal
        bound = pulp.value(lp.objective) * unit if optimal else _highs_bound(lp, unit) if whole else None
        reduced = None
        if not whole and optimal:
            cost = [self._cost(c) / cost_unit if over is None else 0.0 for c in range(n_candidates)]
            reduced = np.concatenate((cost, np.zeros(form.n_skips)))
            for (leaves, arrives), row in zip(form.flows, flow_rows, strict=True):
                reduced[list(leaves)] -= row.pi
                reduced[list(arrives)] += row.pi
            for forms, rows in zip(form.forms, form_rows, strict=True):
                for one, row in zip(forms, rows, strict=False):
                    reduced[list(one)] -= row.pi
            for row, columns_here in level_rows:
                reduced -= row.pi * columns_here / size
            reduced = reduced[:n_candidates] * unit
        return Answer(
            outcome="optimal" if optimal else "feasible", values=values, bound=bound, reduced_cost=reduced
        )

    def _cost(self, column: int) -> float:
        return self.form.ledger.problem.candidates[self.form.active[column]].recompute_seconds

    def _cost_unit(self) -> float:
        return max((self._cost(c) for c in range(len(self.form.active))), default=0.0) / SCALE or 1.0

    def _size_unit(self) -> float:
        """Bytes per unit, a whole number of grains over `SCALE`: the same ratio whatever bytes are counted in."""
        return self.form.most_bytes / SCALE or 1.0

    def _solver(self, whole: bool, time_limit_seconds: float) -> Any:
        import pulp

        limit = max(time_limit_seconds, 0.01)
        if self.backend == "highs":
            return pulp.HiGHS(mip=whole, msg=False, gapRel=0.0, timeLimit=limit)
        # PULP_CBC_CMD warns that it is deprecated; this is the same binary.
        path = pulp.PULP_CBC_CMD.pulp_cbc_path
        return pulp.COIN_CMD(path=path, mip=whole, msg=False, gapRel=0.0, timeLimit=limit)


def _highs_bound(lp: Any, unit: float) -> float | None:
    """Bound of a search that HiGHS did not finish; CBC's does not come through PuLP."""
    if lp.solverModel is None:
        return None
    bound = float(lp.solverModel.getInfo().mip_dual_bound) * unit
    return bound if math.isfinite(bound) else None
