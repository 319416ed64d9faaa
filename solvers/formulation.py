"""From a problem to few variables and rows: what the integer programme is made of, before any solver sees it.

Choosing candidates that do not overlap is a path along the calls: at each call either step over it (nothing
covers it) or jump over a candidate's whole span.

    call        0 ─s0─▶ 1 ─s1─▶ 2 ─s2─▶ 3          s = 1: the call is kept
                        └──────x───────▶           x = 1: the candidate is chosen

That network has integral vertices, two entries a candidate, and says at once what is kept. A tensor beyond its
natural life is cut into *pieces* at the ends of its saves and holds. A piece is alive if any of its *forms* is
1: a kept call that saves it, or a chosen candidate that holds it. A kept call and the candidates that cover it
exclude one another, so they share one form. Most pieces have a single form and need no variable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .ledger import Ints, Ledger

__all__ = ["Floats", "Form", "Formulation"]

Floats = npt.NDArray[np.float64]

Form = tuple[int, ...]
"""Columns whose sum, at most 1 in any plan, says whether something is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """Columns ``0 … n_candidates - 1`` choose candidates, the next ``n_skips`` say that a stretch of calls is kept.

    Attributes:
        ledger: the problem.
        active: candidates that can be part of a plan within the budget; column i is ``active[i]``.
        n_skips: stretches of calls between two points at which a candidate starts or stops.
        flows: per skip, the columns that leave and those that arrive; where none arrives, the path starts.
        forms: per kind of piece, the forms of which the largest counts.
        base_bytes: per step, what is alive in every plan.
        piece_kind: per piece, index into `forms`.
        piece_start: per piece.
        piece_until: per piece.
        piece_bytes: per piece.
        extra_column: per addition of an active candidate.
        extra_start: per addition.
        extra_until: per addition.
        extra_bytes: per addition.
        most_bytes: sum of all pieces, or the largest addition if that is more.
        grain_bytes: every size above is a multiple of this, `base_bytes` left out.
    """

    ledger: Ledger
    active: tuple[int, ...]
    n_skips: int
    flows: tuple[tuple[Form, Form], ...]
    forms: tuple[tuple[Form, ...], ...]
    base_bytes: Ints
    piece_kind: Ints
    piece_start: Ints
    piece_until: Ints
    piece_bytes: Ints
    extra_column: Ints
    extra_start: Ints
    extra_until: Ints
    extra_bytes: Ints
    most_bytes: int
    grain_bytes: int

    @classmethod
    def of(cls, ledger: Ledger, budget_bytes: int) -> Formulation:
        """Reduce a problem; exact. O(problem + candidates × steps)."""
        problem = ledger.problem
        active = tuple(c for c in range(len(problem.candidates)) if _fits(ledger, c, budget_bytes))
        spans = [(problem.candidates[c].start, problem.candidates[c].stop) for c in active]
        points = sorted({point for span in spans for point in span} - {len(problem.calls)})
        stretch = np.searchsorted(points, np.arange(len(problem.calls)), side="right")  # 0: before any candidate
        leaves: list[list[int]] = [[] for _ in points]
        arrives: list[list[int]] = [[] for _ in points]
        at = {point: i for i, point in enumerate(points)}
        for column, (start, stop) in enumerate(spans):
            leaves[at[start]].append(column)
            if stop in at:
                arrives[at[stop]].append(column)
        skip = len(active)
        flows = tuple(
            ((skip + i, *leaves[i]), ((skip + i - 1, *arrives[i]) if i else ())) for i in range(len(points))
        )

        kinds = _Kinds(spans, [int(s) for s in stretch], len(points), skip)
        pieces: list[tuple[int, int, int, int]] = []
        base = np.zeros(len(problem.steps) + 1, dtype=np.int64)
        held_by: list[list[tuple[int, int]]] = [[] for _ in problem.tensors]
        for column, c in enumerate(active):
            for hold in problem.candidates[c].holds:
                held_by[hold.tensor].append((hold.until, column))
        for tensor, holders in zip(problem.tensors, held_by, strict=True):
            ends = [(save.until, None, save.call) for save in tensor.saves]
            ends += [(until, column, -1) for until, column in holders]
            ends = sorted((e for e in ends if e[0] > tensor.free_step), key=lambda e: -e[0])
            calls: set[int] = set()
            columns: set[int] = set()
            for i, (until, column, call) in enumerate(ends):
                if column is None:
                    calls.add(int(stretch[call]))
                else:
                    columns.add(column)
                start = ends[i + 1][0] if i + 1 < len(ends) else tensor.free_step
                if start == until or not tensor.bytes:
                    continue
                kind = kinds.of(frozenset(calls), frozenset(columns))
                if kind is None:
                    base[start] += tensor.bytes
                    base[until] -= tensor.bytes
                else:
                    pieces.append((kind, start, until, tensor.bytes))

        rows = np.array(pieces, dtype=np.int64).reshape(-1, 4)
        owned = [np.arange(ledger.addition_offset[c], ledger.addition_offset[c + 1]) for c in active]
        additions = np.concatenate(owned) if owned else np.zeros(0, dtype=np.int64)
        extra_column = np.repeat(np.arange(len(active), dtype=np.int64), [len(o) for o in owned])
        extra_bytes = ledger.addition_bytes[additions]
        sizes = np.unique(np.concatenate((rows[:, 3], extra_bytes)))
        return cls(
            ledger=ledger,
            active=active,
            n_skips=len(points),
            flows=flows,
            forms=tuple(kinds.forms),
            base_bytes=ledger.base_bytes + np.cumsum(base[:-1]),
            piece_kind=rows[:, 0],
            piece_start=rows[:, 1],
            piece_until=rows[:, 2],
            piece_bytes=rows[:, 3],
            extra_column=extra_column,
            extra_start=ledger.addition_start[additions],
            extra_until=ledger.addition_until[additions],
            extra_bytes=extra_bytes,
            most_bytes=max(int(rows[:, 3].sum()), int(extra_bytes.max(initial=0))),
            grain_bytes=math.gcd(*(int(size) for size in sizes)) or 1,
        )

    def levels(self, values: Floats) -> Floats:
        """Level in every step for column values, whole or not."""
        alive = np.array([max(values[list(form)].sum() for form in forms) for forms in self.forms], dtype=np.float64)
        change = np.zeros(len(self.base_bytes) + 1)
        weight = self.piece_bytes * alive[self.piece_kind]
        np.add.at(change, self.piece_start, weight)
        np.subtract.at(change, self.piece_until, weight)
        weight = self.extra_bytes * values[self.extra_column]
        np.add.at(change, self.extra_start, weight)
        np.subtract.at(change, self.extra_until, weight)
        levels: Floats = self.base_bytes + np.cumsum(change[:-1])
        return levels

    def row(self, step: int) -> tuple[Floats, Floats]:
        """Bytes alive in `step` over the base: per column, and per kind of piece with more than one form."""
        here = (self.piece_start <= step) & (step < self.piece_until)
        kinds = np.bincount(self.piece_kind[here], weights=self.piece_bytes[here], minlength=len(self.forms))
        columns = np.zeros(len(self.active) + self.n_skips)
        for kind in np.flatnonzero(kinds).tolist():
            if len(self.forms[kind]) == 1:
                columns[list(self.forms[kind][0])] += kinds[kind]
                kinds[kind] = 0.0
        here = (self.extra_start <= step) & (step < self.extra_until)
        np.add.at(columns, self.extra_column[here], self.extra_bytes[here])
        return columns, kinds

    def steps_that_matter(self) -> tuple[int, ...]:
        """Steps of which one is the peak in any plan.

        Where nothing ends between two steps, the later stands at least as high as far as decisions go, so the
        earlier is left out if its base is no higher; where nothing begins, the other way round.
        """
        n_steps = len(self.base_bytes)
        begins = np.zeros(n_steps + 1, dtype=np.bool_)
        ends = np.zeros(n_steps + 1, dtype=np.bool_)
        begins[self.piece_start] = True
        begins[self.extra_start] = True
        ends[self.piece_until] = True
        ends[self.extra_until] = True
        later = _undominated(self.base_bytes, ends, range(n_steps))
        return tuple(reversed(_undominated(self.base_bytes, begins, list(reversed(later)))))


def _undominated(base_bytes: Ints, barrier: npt.NDArray[np.bool_], order: Sequence[int]) -> list[int]:
    """Steps that no step further along `order` dominates without a barrier in between."""
    kept: list[int] = []  # within the stretch since the last barrier, the bases fall
    floor = 0  # kept[:floor] lie before that barrier
    previous: int | None = None
    for step in order:
        if previous is not None:
            low, high = min(previous, step), max(previous, step)
            if barrier[low + 1 : high + 1].any():
                floor = len(kept)
        while len(kept) > floor and base_bytes[kept[-1]] <= base_bytes[step]:
            kept.pop()
        kept.append(step)
        previous = step
    return kept


def _fits(ledger: Ledger, c: int, budget_bytes: int) -> bool:
    """Whether the candidate alone stays within the budget even if nothing else were ever held."""
    change = np.zeros(len(ledger.base_bytes) + 1, dtype=np.int64)
    holds = slice(ledger.hold_offset[c], ledger.hold_offset[c + 1])
    tensors, until = ledger.hold_tensor[holds], ledger.free_step.copy()
    np.maximum.at(until, tensors, ledger.hold_until[holds])
    for tensor in set(tensors.tolist()):
        change[ledger.free_step[tensor]] += ledger.tensor_bytes[tensor]
        change[until[tensor]] -= ledger.tensor_bytes[tensor]
    additions = slice(ledger.addition_offset[c], ledger.addition_offset[c + 1])
    np.add.at(change, ledger.addition_start[additions], ledger.addition_bytes[additions])
    np.subtract.at(change, ledger.addition_until[additions], ledger.addition_bytes[additions])
    return bool((ledger.base_bytes + np.cumsum(change[:-1])).max() <= budget_bytes)


class _Kinds:
    """Kinds of pieces seen so far, by what keeps them alive."""

    def __init__(self, spans: Sequence[tuple[int, int]], stretch: Sequence[int], n_points: int, skip: int) -> None:
        self.forms: list[tuple[Form, ...]] = []
        self._index: dict[tuple[Form, ...], int] = {}
        self._known: dict[tuple[frozenset[int], frozenset[int]], int | None] = {}
        self._spans = spans
        self._skip = skip
        first_call = [stretch.index(i) for i in range(n_points + 1) if i in stretch]
        self._call = dict(zip((i for i in range(n_points + 1) if i in stretch), first_call, strict=True))
        self._covers: dict[int, frozenset[int]] = {}

    def of(self, stretches: frozenset[int], columns: frozenset[int]) -> int | None:
        """Kind of a piece saved in these stretches and held by these columns; None if it is always alive."""
        key = (stretches, columns)
        if key not in self._known:
            self._known[key] = self._make(stretches, columns)
        return self._known[key]

    def _make(self, stretches: frozenset[int], columns: frozenset[int]) -> int | None:
        # Alive unless covered by a candidate that does not hold it: the fewer such candidates, the stronger.
        freeing = {s: self._covering(s) - columns for s in stretches}
        if any(not cover for cover in freeing.values()):
            return None
        forms: list[Form] = []
        strongest: list[int] = []
        for s in sorted(stretches, key=lambda s: len(freeing[s])):
            if not any(freeing[other] <= freeing[s] for other in strongest):
                strongest.append(s)
                forms.append((self._skip + s - 1, *sorted(columns & self._covering(s))))
        for clique in _cliques(sorted(columns), self._spans):
            if not any(clique <= self._covering(s) for s in strongest):
                forms.append(tuple(sorted(clique)))
        key = tuple(sorted(forms))
        if key not in self._index:
            self._index[key] = len(self.forms)
            self.forms.append(key)
        return self._index[key]

    def _covering(self, stretch: int) -> frozenset[int]:
        """Columns of the candidates that cover a stretch of calls."""
        if stretch not in self._covers:
            call = self._call[stretch]
            self._covers[stretch] = frozenset(
                column for column, (start, stop) in enumerate(self._spans) if start <= call < stop
            )
        return self._covers[stretch]


def _cliques(columns: Iterable[int], spans: Sequence[tuple[int, int]]) -> list[frozenset[int]]:
    """Largest sets of columns that exclude one another: those over one call, for spans are intervals."""
    columns = tuple(columns)
    over = [
        frozenset(c for c in columns if spans[c][0] <= point < spans[c][1])
        for point in sorted({spans[c][0] for c in columns})
    ]
    return [clique for clique in over if not any(clique < other for other in over)]
