"""A lower bound on the recompute seconds of any method that is free to recompute, keep or skip each op at any time.

    forward              apex              backward
    ├── run ──┼─ run ──┼──│──┼── reads t ──┼── reads w ──┤
                          s                                    what is alive in step s fits into the budget

It is one linear programme, over steps s where the budget binds:

    symbol   meaning                                                        name here
    R_us     unit u runs again after step s                                 columns ``R``
    r_u      unit u runs again                                              columns ``r``
    h_ts     item t is held in s: alive though forward is done with it      columns ``h``
    c_u      seconds of u                                                   ``Unit.seconds``
    b_t      bytes of t                                                     ``Item.bytes``
    room_s   budget, less the base of s and what backward reads in s        ``room_bytes``

    minimise  Σ_u c_u r_u                                   all columns between 0 and 1
    (1)       r_u ≥ R_us                                    paid once, however often it runs again
    (2)       h_ts + R_us ≥ 1                               t is read by backward after s; u makes it
    (3)       h_ts + R_us ≥ R_vs                            t is read by v, which may run again after s; u makes t
    (4)       Σ_t b_t h_ts ≤ room_s                         what is held fits

A step gets its rows once an upper bound on its level exceeds the budget. If nothing can make t again, R_us is 0.

**Why it holds for every schedule.** Take any schedule and one step s. Let h be the items alive in s, and R the units
that run again *after* s. If forward is done with an item by s, and backward reads it after s, the item is in h or is
made again: (2). If a unit runs again after s, every item that it reads is in h or is made again after s: (3). The rows
say nothing about times other than s. So a unit may run again any number of times, and an item may be held for a part of
the time. R has its own columns in each step: a unit that runs again early needs its inputs early, not in later steps.

Example: ``fc`` (4 s) makes an item of 8 bytes, and ``gelu`` (1 s) reads it and makes another of 8; backward reads both.
With room for 10 of the 16 bytes, 6/8 of gelu's item are made again: 0.75 seconds. With room for 4, half of fc's item is
held and its other half is made again, and so is all of gelu's item: 0.5 × 4 + 1 = 3 seconds.

Source: Jain et al. 2020, "Checkmate", with fewer variables, since a unit has only three states (`dataflow.py`). Memory
rows are added as they are broken (Dantzig, Fulkerson and Johnson 1954). The bound follows from the dual prices of the
rows by weak duality (Gale, Kuhn and Tucker 1951), so it holds whatever HiGHS answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...solvers.deadline import Deadline
from ...solvers.errors import BackendError, InvalidProblem
from ...solvers.judge import Floats, peaks
from ...solvers.programme import highs
from .dataflow import Dataflow

SECONDS = 10.0

ROWS_PER_ROUND = 2

SCALE = 1000.0  # sizes and costs are scaled to this, so that tolerances of 1e-6 are 1e-9 of the whole
SAFE = 1e-10  # share of the bound that is given up for rounding
ROOM = 1e-7  # a level may exceed the budget by this share of it

Needs = list[tuple[int, int, int]]
Row = tuple[int, Needs]
"""The rows of a step: the bytes that may be held in it, and its needs (item, maker, reader). A need says: to the extent
that the reader runs again, the item is held or the maker runs again. Reader -1 is backward; maker -1 says that nothing
makes the item again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """How long everything lives, in steps of one training step.

    Attributes:
        base_bytes: per step, the bytes alive in every schedule: parameters, gradients so far, what the caller's own
            references keep, temporaries of the step itself.
        run_step: per unit, the step in which it first runs.
        free_step: per item, the first step in which it would be freed already if backward did not need it. Before that
            it is part of the base. It is 0 for an item from outside that only backward holds.
        read_steps: per item, the steps in which backward reads it, ascending; empty if it is not saved.
    """

    base_bytes: tuple[int, ...]
    run_step: tuple[int, ...]
    free_step: tuple[int, ...]
    read_steps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A lower bound on recompute seconds.

    Attributes:
        seconds: no schedule within the limit costs less; infinite if there is no such schedule.
        converged: whether all rows were found. If not, time ran out or HiGHS failed: the bound is weaker, but valid.
        steps: the steps whose rows were used.
    """

    seconds: float
    converged: bool
    steps: tuple[int, ...]


def peak_bound(flow: Dataflow, lives: Lives, budget_bytes: int, *, seconds: float = SECONDS) -> Bound:
    """Bound the recompute seconds of any method that stays within a peak, over all steps of the training step.

    It holds for every schedule that runs the model's forward and backward in the given order, whatever the schedule
    holds, drops and runs again besides. Temporaries of what runs again are not counted.

    Args:
        flow: the ops of the whole model. What it says about keeping and recomputing units is ignored: a method may
            copy, and may run an op that draws random numbers again.
        lives: how long everything lives.
        budget_bytes: highest level in any step.
        seconds: after so many, the best bound so far is returned.

    Returns:
        The bound, and the steps whose rows it uses.

    Raises:
        InvalidProblem: `lives` does not fit `flow`.

    If the time suffices, the bound is near the optimum of the programme with all rows. The programme has about two
    columns for each pair of an op and a step that has rows.
    """
    deadline = Deadline.after(seconds)
    steps = _Steps(flow, lives)
    again = np.zeros(len(flow.units))
    rows: dict[int, Row] = {}
    best, limit_bytes = 0.0, budget_bytes * (1.0 + ROOM) + 0.5
    while best < math.inf and (
        broken := [step for step in peaks(steps.levels(again), limit_bytes) if step not in rows]
    ):
        for step in broken[: ROWS_PER_ROUND if rows else 1]:
            rows[step] = steps.row(step, budget_bytes)
        try:
            found = _bounded(flow, tuple(rows.values()), deadline)
        except BackendError:
            found = None
        if found is None:
            return Bound(seconds=best, converged=False, steps=tuple(rows))
        best, again = max(best, found[0]), found[1]
    return Bound(seconds=best, converged=True, steps=tuple(rows))


class _Steps:
    """The steps of a model, and what may be held in each.

    `until` is per item the step after which nothing needs it; `unit_until` is per unit the step after which nothing
    needs what it makes; `readers` are per item the units that read its last version.
    """

    def __init__(self, flow: Dataflow, lives: Lives) -> None:
        """Check the data, and find how long items and units are needed: by backward, or to make what is needed."""
        _check(flow, lives)
        self.flow, self.lives = flow, lives
        self.until = [steps[-1] if steps else 0 for steps in lives.read_steps]
        self.unit_until = [0] * len(flow.units)
        self.readers: list[list[int]] = [[] for _ in flow.items]
        for u in range(len(flow.units) - 1, -1, -1):
            self.unit_until[u] = max((self.until[t] for t in flow.units[u].makes), default=0)
            for t in flow.units[u].reads:
                self.until[t] = max(self.until[t], self.unit_until[u])
                # If several units write one item in place, only readers of the last version count.
                if not flow.makers[t] or flow.makers[t][-1] < u:
                    self.readers[t].append(u)

    def row(self, step: int, budget_bytes: int) -> Row:
        """Return the bytes that may be held in `step`, and its needs."""
        flow, lives = self.flow, self.lives
        ran = [run < step < until for run, until in zip(lives.run_step, self.unit_until, strict=True)]
        room_bytes, needs = budget_bytes - lives.base_bytes[step], []
        for t, item in enumerate(flow.items):
            reads = lives.read_steps[t]
            if item.free or lives.free_step[t] > step or (step >= self.until[t] and step not in reads):
                continue
            if step in reads:
                room_bytes -= item.bytes
                continue
            wanted = [-1] if reads and reads[-1] > step else [v for v in self.readers[t] if ran[v]]
            makers = flow.makers[t] if flow.makers[t] and all(ran[u] for u in flow.makers[t]) else (-1,)
            needs += [(t, u, v) for u in makers for v in wanted]
        return room_bytes, needs

    def levels(self, again: Floats) -> Floats:
        """Upper bound on the level of every step, if the fraction `again` of each unit runs again after it."""
        change = np.zeros(len(self.lives.base_bytes) + 1)

        def add(start: int, until: int, n_bytes: float) -> None:
            if start < until:
                change[start] += n_bytes
                change[until] -= n_bytes

        for t, item in enumerate(self.flow.items):
            if item.free:
                continue
            made = min((again[u] for u in self.flow.makers[t]), default=0.0)
            reads, free_step = self.lives.read_steps[t], self.lives.free_step[t]
            last = reads[-1] if reads else -1
            for step in reads:
                if step >= free_step:
                    add(step, step + 1, item.bytes * made)
            add(free_step, last + 1, item.bytes * (1.0 - made))
            wanted = max((again[u] for u in self.readers[t]), default=0.0) - made
            if wanted > 0.0:
                add(max(free_step, last + 1), self.until[t] + 1, item.bytes * wanted)
        levels: Floats = np.array(self.lives.base_bytes) + np.cumsum(change[:-1])
        return levels


def _check(flow: Dataflow, lives: Lives) -> None:
    n_steps, n_items = len(lives.base_bytes), len(flow.items)
    ran, freed, read = len(lives.run_step), len(lives.free_step), len(lives.read_steps)
    if ran != len(flow.units):
        raise InvalidProblem(f"{ran} run steps for {len(flow.units)} units")
    if not freed == read == n_items:
        raise InvalidProblem(f"{freed} free steps and {read} rows of read steps for {n_items} items")
    if not all(0 <= step < n_steps for steps in (lives.run_step, *lives.read_steps) for step in steps):
        raise InvalidProblem(f"a unit runs, or backward reads, outside the {n_steps} steps")
    if not all(0 <= step <= n_steps for step in lives.free_step):
        raise InvalidProblem(f"an item is freed outside the {n_steps} steps")


def _bounded(flow: Dataflow, rows: Sequence[Row], deadline: Deadline) -> tuple[float, Floats] | None:
    """Return a lower bound on seconds, and how much of each unit runs again; None if none was found in time."""
    if deadline.passed:
        return None
    programme = _Programme(flow, rows)
    outcome = highs.solve(programme.lp, seconds=deadline.left, whole=False)
    if outcome.infeasible:
        # Prices cannot prove that there is no schedule. They can prove that one step needs more bytes than its room.
        for row in rows:
            held = _Programme(flow, [row], seconds=False)
            solved = highs.solve(held.lp, seconds=deadline.left, whole=False).solved
            if solved and held.proven() * held.size_unit * (1.0 - SAFE) > row[0]:
                return math.inf, np.zeros(0)
    if not outcome.solved:
        return None
    again = np.zeros(len(flow.units))
    for u, column in programme.paid.items():
        again[u] = min(max(column.varValue or 0.0, 0.0), 1.0)
    return programme.proven() * programme.cost_unit * (1.0 - SAFE), again


class _Programme:
    """The programme of some steps in PuLP: `lp`, its units of seconds and bytes, and the column r of each unit."""

    def __init__(self, flow: Dataflow, rows: Sequence[Row], *, seconds: bool = True) -> None:
        """Make it. Without `seconds`, its goal is the least bytes held in its only step, and it has no rows (4)."""
        pulp = highs.pulp_module()
        self.lp = highs.minimising("bound")
        self.cost_unit = max((unit.seconds for unit in flow.units), default=0.0) / SCALE or 1.0
        self._rows: list[Any] = []
        self.size_unit = max(sum(item.bytes for item in flow.items), 1) / SCALE
        units = sorted({u for _, needs in rows for _, maker, reader in needs for u in (maker, reader)} - {-1})
        sizes: list[tuple[Any, float]] = []
        self.paid = {u: self.lp.add_variable(f"r{u}", 0, 1) for u in units}
        costs = [(column, flow.units[u].seconds / self.cost_unit) for u, column in self.paid.items()]
        for i, (room_bytes, needs) in enumerate(rows):
            held = self._add_step(i, needs, only=len(rows) == 1)
            sizes = [(column, flow.items[t].bytes / self.size_unit) for t, column in held.items()]
            if seconds:
                self._at_most(sizes, room_bytes / self.size_unit)
        self.lp.setObjective(pulp.LpAffineExpression(costs if seconds else sizes))

    def _add_step(self, i: int, needs: Needs, *, only: bool) -> dict[int, Any]:
        """Add the columns of step number i, and rows (1) to (3) of it; return its columns h by item.

        If it is the only step, R is r.
        """
        again = self.paid if only else {u: self.lp.add_variable(f"R{i}_{u}", 0, 1) for u in self.paid}
        held = {t: self.lp.add_variable(f"h{i}_{t}", 0, 1) for t in sorted({t for t, _, _ in needs})}
        for u in () if only else self.paid:
            self._at_most([(again[u], 1.0), (self.paid[u], -1.0)], 0.0)
        for t, maker, reader in needs:
            terms = [(held[t], -1.0), *([(again[maker], -1.0)] if maker >= 0 else [])]
            self._at_most([*terms, *([(again[reader], 1.0)] if reader >= 0 else [])], 0.0 if reader >= 0 else -1.0)
        return held

    def _at_most(self, terms: list[tuple[Any, float]], most: float) -> None:
        pulp = highs.pulp_module()
        self._rows.append(pulp.LpConstraint(pulp.LpAffineExpression(terms), pulp.LpConstraintLE, rhs=most))
        self.lp.addConstraint(self._rows[-1])

    def proven(self) -> float:
        """Return the lower bound on the cost that the dual prices of the rows prove, with every column between 0 and 1.

        With rows ``sum(weight * column) <= most`` it is

            sum(price * -most)  +  sum over columns of min(0, cost + sum(price * weight))

        It holds for all prices that are not negative, and is tight for the best ones.
        """
        reduced, sums = dict(self.lp.objective.items()), []
        for row in self._rows:
            if row.pi is None:
                raise highs.nonsense("a row without a price")
            price = max(-row.pi, 0.0)
            sums.append(price * row.constant)  # a row's constant is -most
            for column, weight in row.items():
                reduced[column] = reduced.get(column, 0.0) + price * weight
        proven = math.fsum([*sums, *(min(value, 0.0) for value in reduced.values())])
        if not math.isfinite(proven):
            raise highs.nonsense("prices of rows that are no numbers")
        return max(proven, 0.0)
