"""How many recompute seconds any method needs, with every op free: recomputed, kept or skipped, as often as it likes.

    forward              apex              backward
    ├── run ──┼─ run ──┼──│──┼── reads t ──┼── reads w ──┤
                          s                                    what stands in step s fits into the budget

One linear programme, over steps s where the budget binds:

    symbol   meaning                                                        name here
    R_us     unit u runs again after step s                                 columns ``R``
    r_u      unit u runs again                                              columns ``r``
    h_ts     item t stands in s though forward is done with it              columns ``h``
    c_u      seconds of u                                                   ``Unit.seconds``
    b_t      bytes of t                                                     ``Item.bytes``
    room_s   budget, less what stands in s anyway and what is read in it    ``Row.room_bytes``

    minimise  Σ_u c_u r_u                                   all columns between 0 and 1
    (1)       r_u ≥ R_us                                    paid once, however often it runs again
    (2)       h_ts + R_us ≥ 1                               t is read by backward after s; u makes it
    (3)       h_ts + R_us ≥ R_vs                            t is read by v, which may run again after s; u makes t
    (4)       Σ_t b_t h_ts ≤ room_s                         added where the level, estimated from above, is too high

Where nothing can make t again, R_us is 0 in (2) and (3).

**Why it holds for every schedule.** Fix a step s. Of any schedule let h be the items that stand in s and R the units
that it runs again *after* s. An item that backward reads after s, whose first life has ended, is in h or is made again:
(2). A unit that is run again after s reads items that are in h or are made again after s: (3). Nothing is said about
times other than s: how often a unit runs again (once, at least), and whether an item is held for a part of the time, is
free. R differs from step to step: what is run again early needs its inputs early, and not in later steps.

Example: ``fc`` (4 s) makes an item of 8 bytes, and ``gelu`` (1 s) reads it and makes another of 8; backward reads both.
With room for 10 of the 16 bytes, 6/8 of what gelu makes is made again: 0.75 seconds. With room for 4, gelu's is made
again from half of what fc makes, which is there, and half that runs again: 1 + 0.5 × 4 = 3 seconds.

Source: the three states of a unit reduce the A and R variables of Jain et al. 2020, "Checkmate", whose memory rows are
made when they are broken (Dantzig, Fulkerson and Johnson 1954). A bound is what the prices of the rows prove by weak
duality (Gale, Kuhn and Tucker 1951): it holds whatever HiGHS answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import highs
from .columns import Floats
from .common import Deadline
from .dataflow import Dataflow
from .errors import BackendError
from .lives import Lives, Row, Steps

SECONDS = 10.0

ROWS_PER_ROUND = 2

SCALE = 1000.0  # sizes and costs are scaled to this, so that tolerances of 1e-6 are 1e-9 of the whole
SAFE = 1e-10  # share of the bound that is given up for sums that are rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A lower bound on recompute seconds.

    Attributes:
        seconds: no schedule within the limit costs less; infinite where there is no such schedule.
        converged: whether all rows were found; else time ran out, or HiGHS failed, and the bound is weaker but valid.
        steps: the steps whose rows were used.
    """

    seconds: float
    converged: bool
    steps: tuple[int, ...]


def peak_bound(flow: Dataflow, lives: Lives, budget_bytes: int, *, seconds: float = SECONDS) -> Bound:
    """Bound the recompute seconds of any method that stays within a peak, over all steps of the training step.

    Holds for schedules that run the model's forward and backward in the given order and may hold, drop and run
    again anything beside; temporaries of what is run again are not counted.

    Args:
        flow: the ops of the whole model. What it says about keeping and recomputing units is ignored: a method may
            copy, and may run an op that draws random numbers again.
        lives: when what stands.
        budget_bytes: highest level in any step.
        seconds: after so many the bound reached is returned.

    Returns:
        The bound, and the steps that it rests on.

    Raises:
        InvalidProblem: `lives` does not fit `flow`.

    A lower bound, and near the optimum of the programme with all rows if the time suffices. A linear programme of
    about two columns an op and step that binds.
    """
    deadline = Deadline.after(seconds)
    steps = Steps.of(flow, lives)
    again = np.zeros(len(flow.units))
    rows: dict[int, Row] = {}
    best, converged = 0.0, True
    while best < math.inf and (broken := steps.broken(again, budget_bytes, rows)):
        for step in broken[: ROWS_PER_ROUND if rows else 1]:
            rows[step] = steps.row(step, budget_bytes)
        try:
            found = _bounded(flow, tuple(rows.values()), deadline)
        except BackendError:
            found = None
        if found is None:
            converged = False
            break
        best, again = max(best, found[0]), found[1]
    return Bound(seconds=best, converged=converged, steps=tuple(rows))


def _bounded(flow: Dataflow, rows: Sequence[Row], deadline: Deadline) -> tuple[float, Floats] | None:
    """Seconds that no schedule undercuts, and how much of each unit runs again; None if there was no time."""
    if deadline.passed:
        return None
    programme = _Programme(flow, rows)
    outcome = highs.solve(programme.lp, seconds=deadline.left, whole=False, presolve=True)
    if outcome.infeasible:
        # Prices do not prove that there is no schedule. That each breaks a row by so many bytes they do.
        programme = _Programme(flow, rows, over=True)
        outcome = highs.solve(programme.lp, seconds=deadline.left, whole=False, presolve=True)
        return (math.inf, np.zeros(0)) if outcome.solved and programme.proven() > SAFE else None
    if not outcome.solved:
        return None
    again = np.zeros(len(flow.units))
    for u, column in programme.paid.items():
        again[u] = min(max(column.varValue or 0.0, 0.0), 1.0)
    return programme.proven() * programme.cost_unit * (1.0 - SAFE), again


class _Programme:
    """The programme of some steps in PuLP: `lp`, the seconds that count as one, and r by unit."""

    def __init__(self, flow: Dataflow, rows: Sequence[Row], *, over: bool = False) -> None:
        """Make it; `over`: for the least bytes by which a row (4) is broken, in place of seconds."""
        pulp = highs.pulp_module()
        self.lp = pulp.LpProblem("bound", pulp.LpMinimize)
        self.cost_unit = max((unit.seconds for unit in flow.units), default=0.0) / SCALE or 1.0
        self.paid: dict[int, Any] = {}
        self._costs: dict[str, float] = {}
        self._rows: list[tuple[Any, list[tuple[Any, float]], float]] = []
        size_unit = max(sum(item.bytes for item in flow.items), 1) / SCALE
        most_over = SCALE + max(-row.room_bytes / size_unit for row in rows)
        missing = [(self._column("y", 1.0), -most_over)] if over else []
        for u in sorted({u for row in rows for _, maker, reader in row.needs for u in (maker, reader)} - {-1}):
            self.paid[u] = self._column(f"r{u}", 0.0 if over else flow.units[u].seconds / self.cost_unit)
        for i, row in enumerate(rows):
            again = {u: self._column(f"R{i}_{u}") for u in self.paid} if len(rows) > 1 else self.paid
            held = {t: self._column(f"h{i}_{t}") for t in sorted({t for t, _, _ in row.needs})}
            if len(rows) > 1:
                for u, column in again.items():
                    self._at_most([(column, 1.0), (self.paid[u], -1.0)], 0.0)
            for t, maker, reader in row.needs:
                terms = [(held[t], -1.0), *([(again[maker], -1.0)] if maker >= 0 else [])]
                self._at_most([*terms, *([(again[reader], 1.0)] if reader >= 0 else [])], 0.0 if reader >= 0 else -1.0)
            sizes = [(column, flow.items[t].bytes / size_unit) for t, column in held.items()]
            self._at_most([*sizes, *missing], row.room_bytes / size_unit)
        self.lp.setObjective(
            pulp.LpAffineExpression([(v, self._costs[v.name]) for v in (*self.paid.values(), *(v for v, _ in missing))])
        )

    def _column(self, name: str, cost: float = 0.0) -> Any:
        column = self.lp.add_variable(name, 0, 1)
        self._costs[name] = cost
        return column

    def _at_most(self, terms: list[tuple[Any, float]], most: float) -> None:
        pulp = highs.pulp_module()
        row = pulp.LpConstraint(pulp.LpAffineExpression(terms), pulp.LpConstraintLE, rhs=most)
        self.lp.addConstraint(row)
        self._rows.append((row, terms, most))

    def proven(self) -> float:
        """What the prices of the rows prove of the least cost, with every column between 0 and 1.

        True of all prices that are not negative, tight for the best.
        """
        reduced, sums = dict(self._costs), []
        for row, terms, most in self._rows:
            price = max(math.nan if row.pi is None else -row.pi, 0.0)
            sums.append(-price * most)
            for column, weight in terms:
                reduced[column.name] += price * weight
        proven = math.fsum([*sums, *(min(value, 0.0) for value in reduced.values())])
        if not math.isfinite(proven):
            raise highs.nonsense("prices of rows that are no numbers")
        return max(proven, 0.0)
