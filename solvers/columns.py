"""The columns of the integer programme, and the bytes that each has in each step; `model` has the rows.

Candidates that do not overlap are a path along the calls: at each point either the calls up to the next point are
kept, or a candidate is recomputed, and the path goes on where it stops.

    point       0 ─k0─▶ 1 ─k1─▶ 2 ─k2─▶ 3          k: the stretch of calls between two points is kept
                        └──────x───────▶           x: the candidate is recomputed

A tensor that forward is done with is cut into *pieces* where a save or a hold of it ends. A piece is alive if
anything holds it: a kept stretch that saves it, or a candidate that needs it as boundary.

    tensor     free_step ├── held by k0, x ──┤ until of x ├── held by k0 ──┤ until of k0's save

The *options* of a stretch are the columns that cover it; they exclude one another. So the options that hold a piece
have a sum of 0 or 1; such a sum is a *form*. Most pieces have a single form, and their bytes count on its columns. The
others get a column of their own.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from .common import Plan
from .judge import Floats, Ints, Judge, course
from .problem import Problem

Form = tuple[int, ...]
"""Columns whose sum, at most 1 in any plan, says whether something is alive."""

ALWAYS = -1  # in place of a column: a save that no candidate covers


class Columns:
    """Columns: one a candidate, then one a stretch, then one a kind of piece that has several forms.

    A plan's level in a step is the base plus the bytes of its columns there.

    Attributes:
        judge: the problem.
        arcs: from point to point, per candidate and per stretch.
        alive: per column of a piece, its forms: its value is the largest of theirs. They use earlier columns only.
        base_bytes: per step, the bytes alive in every plan.
        entry_column: per entry, ascending; its ``entry_bytes`` are alive in steps ``[entry_start, entry_until)``.
        grain_bytes: every entry is a multiple of this.
    """

    def __init__(self, judge: Judge) -> None:
        """Lay a problem out; O(problem + candidates × steps)."""
        problem = judge.problem
        n_candidates = len(problem.candidates)
        spans = [(candidate.start, candidate.stop) for candidate in problem.candidates]
        points = sorted({point for span in spans for point in span} - {len(problem.calls)})
        at = {point: i for i, point in enumerate([*points, len(problem.calls)])}
        arcs = [(at[start], at[stop]) for start, stop in spans] + [(i, i + 1) for i in range(len(points))]
        entries: dict[tuple[int, int, int], int] = defaultdict(int)
        always = np.zeros(len(problem.steps) + 1, dtype=np.int64)
        pieces = _Pieces(arcs, n_candidates)
        for tensor, ends in zip(problem.tensors, _holders(problem, points), strict=True):
            times = [tensor.free_step, *sorted(until for until in ends if until > tensor.free_step)]
            holding: frozenset[int] = frozenset()
            form: Form | None = ()
            for start, until in reversed(list(pairwise(times))):  # back in time a tensor only gains holders
                holding |= ends[until]
                form = None if form is None else pieces.form(holding, form)
                if form is None:
                    always[start] += tensor.bytes
                    always[until] -= tensor.bytes
                else:
                    for column in form:
                        entries[column, start, until] += tensor.bytes
        table = _with_additions(problem, entries)
        self.judge, self.arcs, self.alive = judge, tuple(arcs), tuple(pieces.alive)
        self.base_bytes: Ints = judge.base_bytes + np.cumsum(always[:-1])
        self.entry_column, self.entry_start = table[:, 0], table[:, 1]
        self.entry_until, self.entry_bytes = table[:, 2], table[:, 3]
        self.grain_bytes = math.gcd(*np.unique(table[:, 3]).tolist()) or 1

    @property
    def count(self) -> int:
        """Candidates, stretches and pieces."""
        return len(self.arcs) + len(self.alive)

    @property
    def n_candidates(self) -> int:
        """Candidates: column c is candidate c."""
        return len(self.judge.problem.candidates)

    @property
    def n_points(self) -> int:
        """Points at which a candidate starts or stops, and the end."""
        return len(self.arcs) - self.n_candidates + 1

    def closed(self, most_bytes: int) -> frozenset[int]:
        """Columns that no plan within `most_bytes` takes, since one of their entries alone is larger."""
        above = set(self.entry_column[self.entry_bytes > most_bytes].tolist())
        return frozenset(above.intersection(range(len(self.arcs))))

    def plan(self, values: Floats) -> Plan:
        """Candidates whose column is nearer to 1 than to 0."""
        return tuple(np.flatnonzero(values[: self.n_candidates] > 0.5).tolist())

    def values(self, plan: Plan) -> Floats:
        """Values of all columns under a plan."""
        values = np.zeros(self.count)
        values[self.n_candidates : len(self.arcs)] = 1.0
        for c in plan:
            first, last = self.arcs[c]
            values[c] = 1.0
            values[self.n_candidates + first : self.n_candidates + last] = 0.0
        return self.with_pieces(values)

    def with_pieces(self, values: Floats) -> Floats:
        """Return the values, with those of pieces computed from those of candidates and stretches."""
        values = values.copy()
        for i, forms in enumerate(self.alive):
            values[len(self.arcs) + i] = max(values[list(form)].sum() for form in forms)
        return values

    def levels(self, values: Floats) -> Floats:
        """Level in every step for values of the columns, whole or not; those of pieces are computed."""
        weight = self.entry_bytes * self.with_pieces(values)[self.entry_column]
        return self.base_bytes + course(len(self.base_bytes), self.entry_start, self.entry_until, weight)

    def row(self, step: int) -> Floats:
        """Bytes of each column in `step`."""
        here = (self.entry_start <= step) & (step < self.entry_until)
        row = np.bincount(self.entry_column[here], weights=self.entry_bytes[here], minlength=self.count)
        return row.astype(np.float64)


def _with_additions(problem: Problem, entries: dict[tuple[int, int, int], int]) -> Ints:
    """Return the entries and the candidates' additions as a table (column, start, until, bytes), sorted by column."""
    for c, candidate in enumerate(problem.candidates):
        for addition in candidate.additions:
            if addition.start < addition.until:
                entries[c, addition.start, addition.until] += addition.bytes
    table = np.array([(*key, n) for key, n in entries.items()], dtype=np.int64).reshape(-1, 4)
    found: Ints = table[np.argsort(table[:, 0], kind="stable")]
    return found


def _holders(problem: Problem, points: list[int]) -> list[dict[int, set[int]]]:
    """For each tensor: the step until which it is held -> the columns that hold it so long.

    Such a column is a candidate that holds the tensor, or a stretch whose calls save it.
    """
    holders: list[dict[int, set[int]]] = [defaultdict(set) for _ in problem.tensors]
    for c, candidate in enumerate(problem.candidates):
        for hold in candidate.holds:
            holders[hold.tensor][hold.until].add(c)
    for tensor, ends in zip(problem.tensors, holders, strict=True):
        for save in tensor.saves:
            stretch = bisect_right(points, save.call) - 1  # negative: the call is before all candidates
            ends[save.until].add(len(problem.candidates) + stretch if stretch >= 0 else ALWAYS)
    return holders


class _Pieces:
    """The kinds of pieces met so far, which tensors share.

    `options` are, per stretch, the columns of which exactly one is 1: the stretch itself, and the candidates that cover
    it. `alive` has the columns made here, by their forms. `implied` has all forms that such a column implies: its own,
    and those of the columns among them.
    """

    def __init__(self, arcs: Sequence[tuple[int, int]], n_candidates: int) -> None:
        options: list[set[int]] = [set() for _ in range(len(arcs) - n_candidates)]
        for column, (first, last) in enumerate(arcs):
            for stretch in range(first, last):
                options[stretch].add(column)
        self.arcs, self.options = arcs, [frozenset(each) for each in options]
        self.alive: dict[tuple[Form, ...], int] = {}
        self.implied: dict[int, frozenset[Form]] = {}
        self.known: dict[tuple[frozenset[int], Form], Form | None] = {}

    def form(self, holders: frozenset[int], later: Form) -> Form | None:
        """Columns whose sum says whether a piece is alive; None where it always is.

        Where one sum cannot say it, a new column is made: it is 1 if one of several sums is. If the `later` piece of
        its tensor is alive, a piece is too. So sums that the later piece's column implies are not repeated.
        """
        key = (holders, later)
        if key not in self.known:
            forms = self._forms(holders)
            if forms is not None and len(forms) > 1:
                implied = self.implied.get(later[0], frozenset()) if len(later) == 1 else frozenset()
                if implied:  # `later` is a column made here: it stands for all that it implies
                    forms = (later, *(form for form in forms if form not in implied))
                if len(forms) > 1:
                    column = self.alive.setdefault(forms, len(self.arcs) + len(self.alive))
                    self.implied[column] = implied.union(forms)
                    forms = ((column,),)
            self.known[key] = None if forms is None else forms[0]
        return self.known[key]

    def _forms(self, holders: frozenset[int]) -> tuple[Form, ...] | None:
        """Return one form for each stretch that adds something; None if the piece is always held.

        Over each stretch, one option is chosen: it holds the piece, or frees it. A candidate that covers two stretches
        is an option of both, and frees the piece over both.

            stretches          one        two
            options that free  a, b       a          a covers both

        Whatever frees the piece over `two` frees it over `one`. So `one` adds nothing, and `two` alone gets a form.
        """
        if ALWAYS in holders:
            return None
        stretches = sorted({self.arcs[column][0] for column in holders})
        freeing = {stretch: self.options[stretch] - holders for stretch in stretches}
        if not all(freeing.values()):  # over some stretch nothing frees it
            return None
        covered = self._covered(holders, stretches, freeing)
        forms = {self.options[stretch] & holders for stretch in stretches if stretch not in covered}
        largest: list[frozenset[int]] = []
        for form in sorted(forms, key=len, reverse=True):
            if not any(form <= other for other in largest):  # the sum over a larger set is at least as large
                largest.append(form)
        return tuple(sorted(tuple(sorted(form)) for form in largest))

    def _covered(
        self, holders: frozenset[int], stretches: list[int], freeing: Mapping[int, frozenset[int]]
    ) -> set[int]:
        """Stretches that add nothing: all options that free the piece over another stretch cover them as well."""
        n_candidates = len(self.arcs) - len(self.options)
        saving = [stretch for stretch in stretches if n_candidates + stretch in holders]  # keeping others frees it
        covered: set[int] = set()
        for stretch in sorted(saving, key=lambda each: len(freeing[each])):
            if stretch not in covered:
                spans = [self.arcs[column] for column in freeing[stretch]]
                first, last = max(span[0] for span in spans), min(span[1] for span in spans)
                around = stretches[bisect_left(stretches, first) : bisect_left(stretches, last)]
                covered.update(other for other in around if other != stretch)
        return covered
