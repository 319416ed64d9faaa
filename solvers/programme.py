"""The integer programme in PuLP, for whichever of `backends` is asked.

Sizes are divided by the largest sum and costs by the largest cost, to 1000 each, so that the tolerances of
the solvers (about 1e-6) are about 1e-9 of the whole, and multiplying all bytes by a constant changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .backends import Backend, nonsense, pulp_module, run
from .formulation import Floats, Formulation

SCALE = 1000.0


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
    """``sum(weights × columns) ≤ rhs``, or ``= rhs``."""

    columns: npt.NDArray[np.intp]
    weights: Floats
    rhs: float
    equal: bool = False


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

        Raises:
            BackendError: the backend failed, or answered nonsense.
        """
        pulp = pulp_module()

        form, n_candidates = self.form, len(self.form.active)
        costs = np.array([form.ledger.problem.candidates[c].recompute_seconds for c in form.active])
        cost_unit, size_unit = self._cost_unit(), self._size_unit()
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
        over = form.n_columns
        if over_peak:
            column[over] = lp.add_variable("over", 0)
        for c, step in enumerate(steps, over + 1):
            column[c] = lp.add_variable(f"l{c}", None, self._room(step, margin_bytes) / size_unit)
        lp.setObjective(
            pulp.LpAffineExpression(
                [(column[over], 1.0)] if over_peak else [(column[c], costs[c] / cost_unit) for c in columns]
            )
        )
        rows: list[tuple[Any, _Row]] = []
        for row in (*_flows(form), *_alive(form), *self._levels(steps, size_unit, whole)):
            terms = [
                (column[c], weight)
                for c, weight in zip(row.columns.tolist(), row.weights.tolist(), strict=True)
                if c in column
            ]
            sense = pulp.LpConstraintEQ if row.equal else pulp.LpConstraintLE
            constraint = pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=row.rhs)
            lp.addConstraint(constraint)
            rows.append((constraint, row))

        unit = self.unit
        limit_seconds = deadline - time.perf_counter()
        bound = run(lp, self.backend, time_limit_seconds=limit_seconds, whole=whole, near=self.near)
        if bound is not None:
            bound *= unit
        if lp.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            # CBC's "Integer infeasible" reaches `status`, but not `sol_status`.
            return Answer(outcome="infeasible" if lp.status == pulp.LpStatusInfeasible else "unknown", bound=bound)
        values = np.zeros(over + 1 + len(steps))
        values[list(column)] = [variable.varValue or 0.0 for variable in column.values()]
        values = values[:over]
        if lp.sol_status == pulp.LpSolutionIntegerFeasible:  # out of time; `status` says optimal all the same
            return Answer(outcome="feasible", values=values, bound=bound)
        reduced = None
        if not whole:
            reduced = np.zeros(over + 1 + len(steps))
            reduced[:n_candidates] = 0.0 if over_peak else costs / cost_unit
            prices = np.array([constraint.pi for constraint, _ in rows], dtype=np.float64)  # None is no number
            if not np.isfinite(prices).all():
                raise nonsense(self.backend, "prices of rows that are no numbers")
            for (_, row), price in zip(rows, prices.tolist(), strict=True):
                reduced[row.columns] -= price * row.weights
            reduced = reduced[:n_candidates] * unit
        if whole and self.near and bound is not None:
            return Answer(outcome="feasible", values=values, bound=bound)
        bound = float(pulp.value(lp.objective)) * unit
        return Answer(outcome="optimal", values=values, bound=bound, reduced_cost=reduced)

    @property
    def unit(self) -> float:
        """Seconds or bytes that count as one to the backend."""
        return self._size_unit() if self.goal == "peak" else self._cost_unit()

    def _cost_unit(self) -> float:
        candidates = self.form.ledger.problem.candidates
        return max((candidates[c].recompute_seconds for c in self.form.active), default=0.0) / SCALE or 1.0

    def _size_unit(self) -> float:
        form = self.form
        kept = (form.entry_column >= len(form.active)) & ~np.isin(form.entry_column, list(form.closed))
        return (int(form.entry_bytes.sum(where=kept)) or int(form.entry_bytes.sum())) / SCALE or 1.0

    def _room(self, step: int, margin_bytes: int) -> float:
        """Most bytes of entries in a step."""
        form, grain = self.form, self.form.grain_bytes
        room_bytes = self.limit_bytes - margin_bytes - int(form.base_bytes[step])
        # Sizes are whole grains, so half a grain on top changes nothing but the tolerance.
        return (room_bytes // grain + 0.5) * grain if self.goal == "seconds" else float(room_bytes)

    def _levels(self, steps: Sequence[int], size_unit: float, whole: bool) -> Iterator[_Row]:
        """The level column of a step is at least what stands in it, less what is allowed above the limit.

        In a relaxation that is the level of the step before and what has changed since. Little does, so these rows are
        short where a row of a whole level is as long as there are columns; but from such are the cuts of an integer
        programme made.
        """
        over = self.form.n_columns
        before = np.zeros(over)
        for column, step in enumerate(steps, over + 1):
            here = self.form.row(step)
            changed = np.flatnonzero(here != before)
            base, sign = (over, -1.0) if whole or column == over + 1 else (column - 1, 1.0)
            yield _Row(
                columns=np.append(changed, [base, column]),
                weights=np.append((here - before)[changed] / size_unit, [sign, -1.0]),
                rhs=0.0,
            )
            if not whole:
                before = here


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
