"""A search of the exact solver under way: what it knows of one problem and budget, from one backend.

relax    rows for the steps that the relaxation breaks, columns that would pay it ─▶ a bound, and what may be ruled out
dive     the few columns that cost the relaxation least ──▶ plans
branch   all columns that a better plan may take ─────────▶ plans, and a bound
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .backends import Backend, nonsense
from .families import Plan, trim
from .formulation import Floats, Formulation
from .ledger import Ints
from .programme import SCALE, Answer, Programme

SMALL = 20_000
"""Below so many level rows times columns all are given to the solver at once."""

SHORT = 2
"""Runs of so many calls are in a relaxation from the start, as selective segments are."""

ROWS_PER_ROUND = 60
COLUMNS_PER_ROUND = 150

LARGE = 300
"""Candidates from which on `NEAR` is near enough."""

NEAR = 1e-2
"""Share of the cost of a large problem that is not worth looking for: recorded seconds are not as true."""

NEARER = 2e-3
"""Share of the cost up to which an integer programme is solved, once one has to be."""

RELAXING_SHARE = 0.5
"""Share of the time left in which the relaxation is solved; plans have the rest."""

PROMISING = (80, 320)
"""Candidates in the first integer programmes, beside those that the relaxation or the best plan takes: so few are
searched in a fraction of the time that all take, and mostly hold a plan within 2 % of the bound."""

FEW = 0.7
"""Share of the candidates that matter above which all of them are searched at once."""

PROMISING_SHARE = 0.35
"""Share of the time left that each of these programmes may take."""

CLOSE = 1e-9
"""Costs that differ by less than this share are equal: it is what the solvers' tolerances leave."""

SAFE = 1e-7
"""Share of the goal by which reduced costs may be wrong."""

ROUGH = 1e-5
"""Share of the goal by which a bound may lie above a plan for want of digits; above that it is nonsense."""


@dataclass(slots=True, kw_only=True)
class Search:
    """A search under way, for the fewest seconds within the budget or for the fewest bytes above it.

    Attributes:
        programme: rows, columns and goal.
        steps: those of which one is the peak in any plan.
        plan: the best so far.
        deadline: on the clock of `time.perf_counter`.
        near: share of the goal that is not worth looking for.
        bound: no plan has a lower goal.
        rows: steps that have a level row.
        columns: candidate columns in play.
        guide: the last relaxation that was solved, over some rows and columns.
        relaxed: the one over all, once it is solved.
    """

    programme: Programme
    steps: Ints
    plan: Plan
    deadline: float
    near: float
    bound: float | None = None
    rows: set[int] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)
    guide: Answer | None = None
    relaxed: Answer | None = None

    @classmethod
    def of(
        cls,
        form: Formulation,
        plan: Plan,
        goal: Literal["seconds", "peak"],
        budget_bytes: int,
        backend: Backend,
        deadline: float,
    ) -> Search:
        """Set up a search that starts from a plan, which must be within the budget unless the goal is the peak."""
        large = goal == "seconds" and len(form.active) > LARGE
        near = NEARER if large else 0.0
        programme = Programme(form=form, limit_bytes=budget_bytes, goal=goal, backend=backend, near=near)
        return cls(
            programme=programme,
            steps=np.array(form.steps_that_matter(), dtype=np.int64),
            plan=plan,
            deadline=deadline,
            near=NEAR if large else 0.0,
        )

    @property
    def form(self) -> Formulation:
        """Columns and entries."""
        return self.programme.form

    def run(self) -> None:
        """Search until the plan is proven or time is up.

        Raises:
            BackendError: the backend failed, or answered nonsense; the plan is the best until then.
        """
        self.prove(0.0)
        if not self.form.active:
            self.offer(())
            self.prove(self.goal(()))
        elif len(self.steps) * self.form.n_columns <= SMALL:
            self.rows.update(self.steps.tolist())
            self.columns.update(range(len(self.form.active)))
        else:
            self.relax()
        if self.programme.goal == "seconds" and not self.proven():
            self.dive()
        self.branch()
        if self.programme.goal == "seconds":
            self.offer(trim(self.form.ledger, self.plan, self.programme.limit_bytes))

    def goal(self, plan: Plan) -> float:
        """What is minimised."""
        if self.programme.goal == "seconds":
            return self.form.ledger.seconds(plan)
        return float(max(self.form.ledger.peak(plan) - self.programme.limit_bytes, 0))

    def offer(self, plan: Plan) -> None:
        """Take a plan if it is better than the best, and within the budget where that is asked."""
        fits = self.programme.goal == "peak" or self.form.ledger.peak(plan) <= self.programme.limit_bytes
        if fits and (self.goal(plan), len(plan)) < (self.goal(self.plan), len(self.plan)):
            self.plan = plan
            self.prove(self.bound or 0.0)

    def prove(self, bound: float) -> None:
        """Note a bound; one that lies above the best plan by a solver's tolerance means that the plan is optimal."""
        goal = self.goal(self.plan)
        if not bound <= goal + ROUGH * max(goal, SCALE * self.programme.unit):
            unit = "seconds" if self.programme.goal == "seconds" else "bytes above the budget"
            claim = f"no plan below {bound:g} {unit}, where the judge has one of {goal:g}"
            raise nonsense(self.programme.backend, claim)
        self.bound = min(max(self.bound or 0.0, bound), goal)

    def proven(self) -> bool:
        """Whether no plan can be better than the best, or not by more than is worth looking for."""
        return self.bound is not None and self.bound >= self.goal(self.plan) * (1 - max(CLOSE, self.near))

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.perf_counter()

    def relax(self) -> None:
        """Solve the relaxation over all steps and candidates, with few of either; keep the columns that may help."""
        form = self.form
        column_of = {c: column for column, c in enumerate(form.active)}
        self.add_rows(form.ledger.levels(()), self.programme.limit_bytes)
        self.add_rows(form.ledger.levels(self.plan), 0.9 * self.programme.limit_bytes)
        self.columns.update(column_of[c] for c in self.plan if c in column_of)
        candidates = form.ledger.problem.candidates
        self.columns.update(column_of[c] for c in form.active if candidates[c].length <= SHORT or candidates[c].partial)
        deadline = self.deadline - (1 - RELAXING_SHARE) * self.left()
        while time.perf_counter() < deadline and not self.proven():
            answer = self.programme.solve(sorted(self.rows), sorted(self.columns), whole=False, deadline=deadline)
            if answer.values is None or answer.reduced_cost is None or answer.bound is None:
                break
            self.guide = answer
            wrong = SAFE * self.goal(self.plan)
            lacking = [
                column
                for column in np.argsort(answer.reduced_cost, kind="stable").tolist()
                if answer.reduced_cost[column] < -wrong and column not in self.columns
            ]
            self.columns.update(lacking[:COLUMNS_PER_ROUND])
            over_bytes = answer.bound if self.programme.goal == "peak" else 0.0
            broken = self.add_rows(form.levels(answer.values), (self.programme.limit_bytes + over_bytes) * (1 + SAFE))
            self.prove(answer.bound * (1 - SAFE) - self.worth(lacking, answer.reduced_cost))
            if not lacking and not broken:
                self.relaxed = answer
                return
        self.columns.update(range(len(form.active)))  # no candidate is ruled out, so a bound needs them all

    def worth(self, lacking: Sequence[int], reduced_cost: Floats) -> float:
        """What columns that a relaxation lacks can lower it by at most: the best of them that do not overlap."""
        arcs = sorted((self.form.arcs[column][1], self.form.arcs[column][0], column) for column in lacking)
        best = np.zeros(self.form.n_points)  # among arcs that end at a point or before it
        for stop, start, column in arcs:
            best[stop:] = np.maximum(best[stop:], best[start] - reduced_cost[column])
        return float(best[-1])

    def dive(self) -> None:
        """Search among the few candidates that the relaxation takes, or would take at the least cost."""
        if self.guide is None or self.guide.values is None or self.guide.reduced_cost is None:
            return
        likely = np.argsort(self.guide.reduced_cost, kind="stable").tolist()
        taken = np.flatnonzero(self.guide.values[: len(likely)] > SAFE).tolist()
        for promising in PROMISING:
            chosen, matter = set(self.plan), self.that_matter()
            known = [column for column, c in enumerate(self.form.active) if c in chosen]
            few = {*known, *taken, *[column for column in likely if column in matter][:promising]}
            deadline = self.deadline - (1 - PROMISING_SHARE) * self.left()
            if len(few) < FEW * len(matter):  # else all of them take no longer, and show a bound
                self.choose(few, deadline, proves=False)

    def branch(self) -> None:
        """Search among all candidates that a better plan may take."""
        self.choose(self.that_matter(), self.deadline, proves=True)

    def that_matter(self) -> set[int]:
        """Columns that a better plan may take: after a relaxation those whose reduced cost is within the gap."""
        if self.relaxed is None or self.relaxed.reduced_cost is None or self.relaxed.bound is None:
            return self.columns
        most = self.goal(self.plan) * (1 + SAFE) - self.relaxed.bound
        return set(np.flatnonzero(self.relaxed.reduced_cost <= most).tolist())

    def choose(self, columns: set[int], deadline: float, *, proves: bool) -> None:
        """Solve the integer programme over some columns; where its plan breaks a level, add the step and repeat.

        Its bound `proves` something only where no better plan takes another column.
        """
        ledger, limit_bytes, margin_bytes = self.form.ledger, self.programme.limit_bytes, 0
        while time.perf_counter() < deadline and not self.proven():
            answer = self.programme.solve(
                sorted(self.rows), sorted(columns), whole=True, deadline=deadline, margin_bytes=margin_bytes
            )
            if proves and not margin_bytes:
                if answer.outcome == "infeasible":
                    raise nonsense(self.programme.backend, "no plan at all, where the judge has one")
                if answer.bound is not None:
                    self.prove(answer.bound)
            if answer.values is None:
                return
            plan = self.form.plan(answer.values)
            self.offer(plan)
            above_bytes = ledger.peak(plan) - limit_bytes
            if self.programme.goal == "peak":
                if not self.add_rows(ledger.levels(plan), limit_bytes + (answer.bound or 0.0) * (1 + SAFE)):
                    return
            elif above_bytes <= 0:
                return
            elif not self.add_rows(ledger.levels(plan), limit_bytes):
                # Every broken step has its row: the solver's tolerance let it through.
                margin_bytes = 2 * (margin_bytes + above_bytes)

    def add_rows(self, levels: Ints | Floats, limit_bytes: float) -> bool:
        """Add the steps where the levels peak above a limit, highest first; whether one of them is new."""
        here = np.asarray(levels, dtype=np.float64)[self.steps]
        before, after = np.append(-np.inf, here[:-1]), np.append(here[1:], -np.inf)
        peaks = np.flatnonzero((here > limit_bytes) & (here >= before) & (here > after))
        peaks = peaks[np.argsort(-here[peaks], kind="stable")][:ROWS_PER_ROUND]
        new = set(self.steps[peaks].tolist()) - self.rows
        self.rows |= new
        return bool(new)
