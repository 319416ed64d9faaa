"""The exact solver: an integer programme whose rows and columns are generated, with the judge in the loop.

    instant plans ─▶ relaxation ◀─ rows that it breaks, columns that it lacks      lower bound
                         │
                         ├─▶ rounded and repaired plan                              upper bound
                         ▼
                     columns whose reduced cost is above the gap go; integer programme over the rest
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .errors import AutockptError
from .families import Plan, infeasible, judged, trim
from .formulation import Floats, Formulation
from .instant import instant_plan
from .ledger import Ints, Ledger
from .problem import Problem, Solution
from .programme import Backend, Programme, default_backend

__all__ = ["search", "solve"]

SMALL = 20_000
"""Below so many level rows times columns all are given to the solver at once."""

MAX_ROWS_PER_ROUND = 60
MAX_COLUMNS_PER_ROUND = 150
POOL = 80
"""Candidates that the repair of a rounded plan may use."""

CLOSE = 1e-9
"""Costs that differ by less than this share are equal: it is what the solvers' tolerances leave."""


def solve(
    problem: Problem,
    budget_bytes: int,
    *,
    time_limit_seconds: float = 4.0,
    backend: Backend | None = None,
) -> Solution:
    """Choose by integer programming; the optimum unless time runs out.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: after so long the best plan found is returned, with the bound proven so far.
        backend: ``highs`` or ``cbc``; None takes HiGHS where it is installed.

    Returns:
        The best plan found, never worse than what the simple solvers find.

    Raises:
        AutockptError: neither HiGHS nor CBC is installed.
        Infeasible: no plan fits. Its minimum is the true one where the time sufficed to prove it.

    Source: the memory rows of Jain et al. 2020, "Checkmate", section 4, and Shah et al. 2021, "MONeT", over
    segments in place of tensors; row generation after Dantzig, Fulkerson and Johnson 1954, column generation
    after Gilmore and Gomory 1961.
    Exact; exponential in the worst case.
    """
    deadline = time.perf_counter() + time_limit_seconds
    ledger = Ledger.of(problem)
    start = instant_plan(ledger, budget_bytes)
    return search(ledger, start.plan, budget_bytes=budget_bytes, deadline=deadline, backend=backend)


def search(
    ledger: Ledger, start: Plan, *, budget_bytes: int, deadline: float, backend: Backend | None = None
) -> Solution:
    """Improve `start` until it is proven optimal or `time.perf_counter` reaches `deadline`; see `solve`."""
    backend = backend or default_backend()
    if backend is None:
        raise AutockptError("solver 'ilp' needs CBC, which PuLP brings for most machines, or HiGHS: pip install highspy")
    problem, plan = ledger.problem, start
    if ledger.peak(plan) > budget_bytes:
        lowest = _Search.of(ledger, plan, "peak", budget_bytes, backend, deadline).run()
        if ledger.peak(lowest.plan) > budget_bytes:
            raise infeasible(problem, lowest.plan, budget_bytes=budget_bytes, solver="ilp")
        plan = trim(ledger, lowest.plan, budget_bytes)
    if ledger.seconds(plan) <= 0.0:
        return judged(problem, plan, solver="ilp")
    best = _Search.of(ledger, plan, "seconds", budget_bytes, backend, deadline).run()
    plan = trim(ledger, best.plan, budget_bytes)
    cost = ledger.seconds(plan)
    bound = best.bound
    if bound is not None:
        bound = cost if bound >= cost * (1 - CLOSE) else max(bound, 0.0)
    return judged(problem, plan, solver="ilp", lower_bound_seconds=bound)


@dataclass(slots=True, kw_only=True)
class _Search:
    """A search under way.

    Attributes:
        plan: the best plan so far.
        bound: no plan has a lower goal.
        rows: steps that have a level row.
        columns: candidate columns in play.
    """

    programme: Programme
    steps: Ints
    plan: Plan
    deadline: float
    bound: float | None = None
    rows: set[int] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        plan: Plan,
        goal: Literal["seconds", "peak"],
        budget_bytes: int,
        backend: Backend,
        deadline: float,
    ) -> _Search:
        """Set up a search from a plan that is within the budget, or for the lowest peak from any."""
        most_bytes = budget_bytes if goal == "seconds" else ledger.peak(plan)
        form = Formulation.of(ledger, most_bytes)
        programme = Programme(form=form, limit_bytes=budget_bytes, goal=goal, backend=backend)
        steps = np.array(form.steps_that_matter(), dtype=np.int64)
        return cls(programme=programme, steps=steps, plan=plan, deadline=deadline)

    @property
    def form(self) -> Formulation:
        return self.programme.form

    @property
    def ledger(self) -> Ledger:
        return self.form.ledger

    def run(self) -> _Search:
        """Search until the plan is proven or time is up."""
        if not self.form.active:
            self.bound = self.goal(())
            self.offer(())
            return self
        if len(self.steps) * (len(self.form.active) + self.form.n_skips) <= SMALL:
            self.rows.update(self.steps.tolist())
            self.columns.update(range(len(self.form.active)))
        else:
            self.relax()
        self.branch()
        return self

    def goal(self, plan: Plan) -> float:
        """What is minimised: seconds, or bytes above the budget."""
        if self.programme.goal == "seconds":
            return self.ledger.seconds(plan)
        return float(max(self.ledger.peak(plan) - self.programme.limit_bytes, 0))

    def fits(self, plan: Plan) -> bool:
        return self.programme.goal == "peak" or self.ledger.peak(plan) <= self.programme.limit_bytes

    def offer(self, plan: Plan) -> None:
        """Take a plan if it is better than the best."""
        if self.fits(plan) and (self.goal(plan), len(plan)) < (self.goal(self.plan), len(self.plan)):
            self.plan = plan

    def proven(self) -> bool:
        return self.bound is not None and self.bound >= self.goal(self.plan) * (1 - CLOSE)

    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def relax(self) -> None:
        """Solve the relaxation over all rows and columns, by generating both; round what comes out."""
        form = self.form
        self.add_rows(self.ledger.levels(()))
        self.add_rows(self.ledger.levels(self.plan), 0.9)
        index = {c: column for column, c in enumerate(form.active)}
        self.columns.update(index[c] for c in self.plan if c in index)
        self.columns.update(
            column for column, c in enumerate(form.active) if self.ledger.problem.candidates[c].length == 1
        )
        while self.left() > 0:
            answer = self.programme.solve(
                sorted(self.rows), sorted(self.columns), whole=False, time_limit_seconds=self.left()
            )
            if answer.values is None or answer.reduced_cost is None or answer.bound is None:
                return
            lacking = [
                column
                for column in np.argsort(answer.reduced_cost).tolist()
                if column not in self.columns and answer.reduced_cost[column] < -1e-7 * max(answer.bound, 1e-3)
            ]
            self.columns.update(lacking[:MAX_COLUMNS_PER_ROUND])
            limit = self.programme.limit_bytes + (answer.bound if self.programme.goal == "peak" else 0.0)
            broken = self.add_rows(form.levels(answer.values), limit_bytes=limit * (1 + 1e-7))
            self.round(answer.values, answer.reduced_cost)
            if not lacking:
                self.bound = max(self.bound or 0.0, answer.bound * (1 - CLOSE))
                gap = self.goal(self.plan) - answer.bound
                if self.proven():
                    return
                if not broken:
                    self.columns = {
                        column
                        for column in range(len(form.active))
                        if answer.reduced_cost[column] <= gap + 1e-7 * answer.bound
                    }
                    return

    def add_rows(self, levels: Ints | Floats, share: float = 1.0, limit_bytes: float | None = None) -> bool:
        """Add rows where the levels peak above a limit; whether there is a new one."""
        limit = limit_bytes if limit_bytes is not None else self.programme.limit_bytes * share
        here = np.asarray(levels, dtype=np.float64)[self.steps]
        before = np.concatenate(([-np.inf], here[:-1]))
        after = np.concatenate((here[1:], [-np.inf]))
        peaks = np.flatnonzero((here > limit) & (here >= before) & (here > after))
        peaks = peaks[np.argsort(-here[peaks], kind="stable")][:MAX_ROWS_PER_ROUND]
        new = set(self.steps[peaks].tolist()) - self.rows
        self.rows |= new
        return bool(new)

    def round(self, values: Floats, reduced_cost: Floats) -> None:
        """Make a plan of the larger half of a fractional solution, and repair it."""
        n = len(self.form.active)
        order = np.lexsort((reduced_cost, -values[:n]))
        pool = [self.form.active[column] for column in order[:POOL].tolist()]
        rounded = [self.form.active[column] for column in order.tolist() if values[column] > 0.5]
        self.offer(self.repair(tuple(sorted(rounded)), pool))

    def repair(self, plan: Plan, pool: Sequence[int]) -> Plan:
        """Swap candidates of the pool in, by bytes above the limit removed per second, until the plan fits."""
        ledger, limit = self.ledger, self.programme.limit_bytes
        candidates = ledger.problem.candidates
        above = _above(ledger, plan, limit)
        while above and self.left() > 0:
            best: tuple[float, float, Plan] | None = None
            for c in pool:
                if c in plan:
                    continue
                rest = [
                    other
                    for other in plan
                    if candidates[other].stop <= candidates[c].start or candidates[c].stop <= candidates[other].start
                ]
                swapped = tuple(sorted((*rest, c)))
                lower = _above(ledger, swapped, limit)
                if lower < above:
                    dearer = max(ledger.seconds(swapped) - ledger.seconds(plan), 1e-12)
                    rate = (above - lower) / dearer
                    if best is None or rate > best[0]:
                        best = (rate, lower, swapped)
            if best is None:
                break
            _, above, plan = best
        return trim(ledger, plan, limit)

    def branch(self) -> None:
        """Solve the integer programme; add the rows that its plan breaks, and repeat."""
        margin_bytes = 0
        proof: float | None = None
        while self.left() > 0 and not self.proven():
            answer = self.programme.solve(
                sorted(self.rows),
                sorted(self.columns),
                whole=True,
                time_limit_seconds=self.left(),
                margin_bytes=margin_bytes,
            )
            if answer.bound is not None and not margin_bytes:
                proof = answer.bound
                self.bound = max(self.bound or 0.0, min(proof, self.goal(self.plan)))
            if answer.outcome == "infeasible" and not margin_bytes:
                self.bound = self.goal(self.plan)
            if answer.values is None:
                return
            chosen = np.flatnonzero(answer.values[: len(self.form.active)] > 0.5)
            plan = tuple(self.form.active[column] for column in chosen.tolist())
            self.offer(plan)
            levels = self.ledger.levels(plan)
            limit = self.programme.limit_bytes
            if self.programme.goal == "peak":
                limit += int(self.goal(self.plan))
            if not self.add_rows(levels, limit_bytes=limit):
                above = int(levels.max()) - self.programme.limit_bytes
                if self.fits(plan) or margin_bytes > 100 * above:
                    return
                margin_bytes += 2 * above
            else:
                self.offer(self.repair(plan, [self.form.active[column] for column in sorted(self.columns)][:POOL]))


def _above(ledger: Ledger, plan: Plan, limit_bytes: int) -> float:
    """Bytes above the limit, summed over the steps."""
    return float(np.maximum(ledger.levels(plan) - limit_bytes, 0).sum())
