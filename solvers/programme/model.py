"""The integer programme: the cheapest plan within a budget, or the plan with the lowest peak.

    symbol   meaning                                              name here
    x_c      candidate c is recomputed                            variables x0, x1, …
    k_s      stretch s of calls is kept                           variables k0, k1, …
    a_p      piece p of a tensor is alive                         variables a0, a1, …; none where one form says it
    y        bytes above the budget                               variable "over", where the goal is the peak
    s_c      recompute seconds of candidate c                     ``Candidate.recompute_seconds``
    b_pt     bytes of piece p, where it spans step t              ``Columns.row(t)``
    e_ct     bytes that candidate c adds in step t                ``Columns.row(t)``
    B_t      bytes that are alive in step t under every plan      ``Columns.base_bytes``
    M        budget                                               ``limit_bytes``
    S        seconds that the plan may cost                       ``most_seconds``

    minimise    Σ_c s_c x_c                                       goal "seconds"; goal "peak": y
    (1)         leaving p − arriving at p = [p is the first]      each point p: x and k are a path from first to last
    (2)         a_p ≥ Σ {options of stretch s that hold p}        each *form* of p, see `columns`
    (3)         B_t + Σ_p b_pt a_p + Σ_c e_ct x_c ≤ M (+ y)       steps t where a plan or a relaxation peaks
    (4)         Σ_c s_c x_c ≤ S                                   goal "peak", where seconds are limited

x and k are 0 or 1; a follows. There are thousands of steps, and few of them bind: rows (3) are added as they are
broken. Solved as a relaxation over all columns, then as an integer programme over few of them; see `ilp`.

Sizes and costs are divided so that the largest are about 1000. HiGHS keeps rows to 1e-6, which then is 1e-9 of the
whole, and multiplying all bytes by a constant changes nothing.

Example: two blocks save 6 and 4 bytes from the end of forward (step 1) on, and step 1 has a base of 2. Recomputing
them costs 3 and 1 seconds. With M = 9 row (3) is ``6 k0 + 4 k1 ≤ 7``. The relaxation keeps the first and a quarter of
the second, for 0.75 seconds; whole, it keeps the first, for 1 second.

Source: the memory rows of Jain et al. 2020, "Checkmate", section 4, over segments in place of tensors; the path of
Beaumont et al. 2019; rows as they are broken after Dantzig, Fulkerson and Johnson 1954.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..columns import Columns
from ..common import Plan
from ..judge import Floats
from . import highs

SCALE = 1000.0

Goal = Literal["seconds", "peak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What HiGHS says, before the judge has a word.

    Attributes:
        solved: whether the values are an optimum.
        infeasible: whether no plan keeps to the rows.
        values: per column; None if there are none.
        bound: no plan that keeps to the rows has a lower goal, in seconds or bytes; None if not known.
        reduced_cost: per candidate, how far above the bound the goal is, at least, if it is taken. Empty unless a
            relaxation was solved.
    """

    solved: bool
    infeasible: bool
    values: Floats | None
    bound: float | None
    reduced_cost: Floats


class Question:
    """What is asked of a problem's columns: fewest seconds within the limit, or fewest bytes above it.

    `costs` are seconds per candidate. `closed` are columns that no plan of at most `most_bytes` takes. HiGHS counts
    seconds in `cost_unit` and bytes in `size_unit`.
    """

    def __init__(
        self, columns: Columns, goal: Goal, limit_bytes: int, *, most_bytes: int, most_seconds: float = math.inf
    ) -> None:
        """Ask for plans of at most `most_bytes`."""
        candidates = columns.judge.problem.candidates
        self.columns, self.goal, self.limit_bytes, self.most_seconds = columns, goal, limit_bytes, most_seconds
        self.costs = np.array([candidate.recompute_seconds for candidate in candidates], dtype=np.float64)
        self.closed = columns.closed(most_bytes)
        self.cost_unit = float(self.costs.max(initial=0.0)) / SCALE or 1.0
        self.size_unit = max(limit_bytes, int(columns.base_bytes.max())) / SCALE or 1.0

    @property
    def unit(self) -> float:
        """The seconds or bytes that HiGHS counts the goal in."""
        return self.cost_unit if self.goal == "seconds" else self.size_unit

    @property
    def open(self) -> list[int]:
        """Candidates that a plan may take."""
        return [c for c in range(self.columns.n_candidates) if c not in self.closed]


class Model:
    """The programme over some candidates, in PuLP, to which level rows are added."""

    def __init__(self, question: Question, candidates: Iterable[int], steps: Iterable[int], *, whole: bool) -> None:
        """Make the programme over these candidates with rows (3) for these steps; `whole`: not the relaxation."""
        pulp = highs.pulp_module()
        self.question, self.whole = question, whole
        columns, n = question.columns, question.columns.n_candidates
        taken = sorted(set(candidates))
        self._new: list[Any] = []
        self.lp = highs.minimising("autockpt")
        # Stretches are whole wherever candidates are. To declare that keeps HiGHS (seen in 1.10 and 1.15) from presolve
        # steps for mixed columns that cut off the optimum of tiny problems.
        kind = pulp.LpInteger if whole else pulp.LpContinuous
        open_stretches = [c for c in range(n, len(columns.arcs)) if c not in question.closed]
        self._variable: dict[int, Any] = {c: self.lp.add_variable(f"x{c}", 0, 1, kind) for c in taken}
        self._variable.update({c: self.lp.add_variable(f"k{c - n}", 0, 1, kind) for c in open_stretches})
        pieces = range(len(columns.arcs), columns.count)
        self._variable.update({c: self.lp.add_variable(f"a{c - len(columns.arcs)}", 0, 1) for c in pieces})
        costs = question.costs / question.cost_unit
        cost = [(self._variable[c], costs[c]) for c in taken]
        self._over = self.lp.add_variable("over", 0) if question.goal == "peak" else None
        self.lp.setObjective(pulp.LpAffineExpression(cost if self._over is None else [(self._over, 1.0)]))
        self._add_path()
        for piece, forms in zip(pieces, columns.alive, strict=True):
            for form in forms:
                self._add([(c, 1.0) for c in form] + [(piece, -1.0)], 0.0)
        if question.goal == "peak" and question.most_seconds < math.inf:
            self._add([(c, costs[c]) for c in taken], question.most_seconds / question.cost_unit)
        self.add_levels(steps)

    def _add_path(self) -> None:
        """Rows (1)."""
        columns = self.question.columns
        terms: list[list[tuple[int, float]]] = [[] for _ in range(columns.n_points)]
        for column, (first, last) in enumerate(columns.arcs):
            terms[first].append((column, 1.0))
            terms[last].append((column, -1.0))
        for point in range(columns.n_points - 1):
            self._add(terms[point], 0.0 if point else 1.0, equal=True)

    def add_levels(self, steps: Iterable[int]) -> None:
        """Rows (3) for some steps."""
        question = self.question
        columns, grain, size_unit = question.columns, question.columns.grain_bytes, question.size_unit
        for step in steps:
            room_bytes = float(question.limit_bytes - int(columns.base_bytes[step]))
            if question.goal == "seconds":
                # Sizes are whole grains, so half a grain on top changes nothing but the tolerance.
                room_bytes = (room_bytes // grain + 0.5) * grain
            row = columns.row(step)
            terms = [(c, row[c] / size_unit) for c in np.flatnonzero(row).tolist()]
            self._add(terms, room_bytes / size_unit, over=True)

    def _add(self, terms: Sequence[tuple[int, float]], most: float, *, equal: bool = False, over: bool = False) -> None:
        """Add a row over the columns in the programme: their sum is at most `most`, or `equal` to it."""
        pulp = highs.pulp_module()
        known = [(self._variable[c], weight) for c, weight in terms if c in self._variable]
        if over and self._over is not None:
            known.append((self._over, -1.0))
        sense = pulp.LpConstraintEQ if equal else pulp.LpConstraintLE
        row = pulp.LpConstraint(pulp.LpAffineExpression(known), sense, rhs=most)
        self.lp.addConstraint(row)
        self._new.append(row)

    def solve(self, seconds: float, *, start: Plan | None = None, near: float = 0.0) -> Answer:
        """Ask HiGHS, for so many seconds at most; an integer search starts from `start` and may end within `near`."""
        columns, n = self.question.columns, self.question.columns.n_candidates
        named = None if start is None else self._named(start)
        # Relaxations start with few rows and are solved again with more: presolve would take longer than they do.
        whole, more, self._new = self.whole, self._new, []
        outcome = highs.solve(self.lp, seconds=seconds, whole=whole, near=near, start=named, more=more, presolve=whole)
        values, reduced = None, np.zeros(0)
        if outcome.feasible:
            values = np.zeros(columns.count)
            values[list(self._variable)] = [variable.varValue or 0.0 for variable in self._variable.values()]
        if outcome.solved and not self.whole:
            reduced = np.full(n, np.inf)
            taken = [c for c in self._variable if c < n]
            reduced[taken] = [self._variable[c].dj for c in taken]
            if np.isnan(reduced).any():
                raise highs.nonsense("reduced costs that are no numbers")
        return Answer(
            solved=outcome.solved,
            infeasible=outcome.infeasible,
            values=values,
            bound=None if outcome.bound is None else outcome.bound * self.question.unit,
            reduced_cost=reduced * self.question.unit,
        )

    def _named(self, plan: Plan) -> dict[str, float]:
        """Values of the variables under a plan, by name."""
        question = self.question
        values = question.columns.values(plan)
        named = {variable.name: float(values[c]) for c, variable in self._variable.items()}
        over_bytes = max(float(question.columns.levels(values).max()) - question.limit_bytes, 0.0)
        return named | {"over": over_bytes / question.size_unit}
