"""From a problem to few columns and entries: what the exact solvers work on.

Choosing candidates that do not overlap is a path along the calls: at each point either step over the calls up
to the next point (nothing covers them, they are kept) or jump over a candidate's whole span.

    point       0 ─s0─▶ 1 ─s1─▶ 2 ─s2─▶ 3          s = 1: the stretch of calls is kept
                        └──────x───────▶           x = 1: the candidate is chosen

That network has integral vertices, two entries a candidate, and says at once what is kept. A tensor beyond its
natural life is cut into *pieces* at the ends of its saves and holds. A piece is alive if any of its *forms* is
1: a kept stretch that saves it, or a chosen candidate that holds it. A kept stretch and the candidates that
cover it exclude one another, so they share one form. Most pieces have a single form and hang on its columns; the
others get a column of their own, *alive*, that is at least each form.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .ledger import Ints, Ledger
from .problem import Candidate

Floats = npt.NDArray[np.float64]

Form = tuple[int, ...]
"""Columns whose sum, at most 1 in any plan, says whether something is alive."""

ALWAYS = -1
"""Stands for a save that no candidate covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """Columns: one a candidate, then one a stretch of calls (a *skip*), then one an alive kind of piece.

    A plan's level in a step is the base plus the bytes of the entries of its columns there.

    Attributes:
        ledger: the problem.
        active: candidates that can be part of a plan within the budget, and that no other equals for fewer seconds;
            column i is ``active[i]``.
        arcs: from point to point, per candidate and per skip.
        alive: per alive column, the forms of which the largest counts; they use earlier columns only.
        base_bytes: per step, what stands in every plan.
        entry_column: per entry, ascending.
        entry_start: first step in which the entry's bytes stand.
        entry_until: first step in which they no longer do.
        entry_bytes: per entry.
        grain_bytes: every entry is a multiple of this.
        closed: skips that no plan within the budget takes, since one entry of theirs is above it.
    """

    ledger: Ledger
    active: tuple[int, ...]
    arcs: tuple[tuple[int, int], ...]
    alive: tuple[tuple[Form, ...], ...]
    base_bytes: Ints
    entry_column: Ints
    entry_start: Ints
    entry_until: Ints
    entry_bytes: Ints
    grain_bytes: int
    closed: frozenset[int]

    @classmethod
    def of(cls, ledger: Ledger, budget_bytes: int) -> Formulation:
        """Reduce a problem; exact. O(problem + candidates × steps)."""
        problem = ledger.problem
        active = tuple(c for c in _undercut_by_none(problem.candidates) if _fits(ledger, c, budget_bytes))
        spans = [(problem.candidates[c].start, problem.candidates[c].stop) for c in active]
        points = sorted({point for span in spans for point in span} - {len(problem.calls)})
        at = {point: i for i, point in enumerate([*points, len(problem.calls)])}
        arcs = [(at[start], at[stop]) for start, stop in spans] + [(i, i + 1) for i in range(len(points))]

        kinds = _Kinds(arcs, len(active))
        held_by: list[list[tuple[int, int]]] = [[] for _ in problem.tensors]
        for column, c in enumerate(active):
            for hold in problem.candidates[c].holds:
                held_by[hold.tensor].append((hold.until, column))
        always = np.zeros(len(problem.steps) + 1, dtype=np.int64)
        entries: list[tuple[int, int, int, int]] = []
        for tensor, holders in zip(problem.tensors, held_by, strict=True):
            ends: dict[int, set[int]] = {}
            for until, column in holders:
                ends.setdefault(until, set()).add(column)
            for save in tensor.saves:
                stretch = bisect_right(points, save.call) - 1  # -1: before any candidate
                ends.setdefault(save.until, set()).add(len(active) + stretch if stretch >= 0 else ALWAYS)
            kind = kinds.nothing
            times = [tensor.free_step, *sorted(until for until in ends if until > tensor.free_step)]
            for start, until in reversed(list(pairwise(times))):
                kind = kinds.joined(kind, frozenset(ends[until]))
                if kind.always:
                    always[start] += tensor.bytes
                    always[until] -= tensor.bytes
                else:
                    entries.extend((c, start, until, tensor.bytes) for c in kinds.columns(kind))

        table = np.array(entries, dtype=np.int64).reshape(-1, 4)
        owned = [np.arange(ledger.addition_offset[c], ledger.addition_offset[c + 1]) for c in active]
        extra = np.concatenate(owned) if owned else np.zeros(0, dtype=np.int64)
        columns = np.concatenate((table[:, 0], np.repeat(np.arange(len(active)), [len(o) for o in owned])))
        order = np.argsort(columns, kind="stable")
        entry_bytes = np.concatenate((table[:, 3], ledger.addition_bytes[extra]))[order]
        above = set(columns[order][entry_bytes > budget_bytes].tolist())
        return cls(
            ledger=ledger,
            active=active,
            arcs=tuple(arcs),
            alive=tuple(kinds.alive),
            base_bytes=ledger.base_bytes + np.cumsum(always[:-1]),
            entry_column=columns[order],
            entry_start=np.concatenate((table[:, 1], ledger.addition_start[extra]))[order],
            entry_until=np.concatenate((table[:, 2], ledger.addition_until[extra]))[order],
            entry_bytes=entry_bytes,
            grain_bytes=math.gcd(*np.unique(entry_bytes).tolist()) or 1,
            closed=frozenset(above.intersection(range(len(active), len(arcs)))),
        )

    @property
    def n_columns(self) -> int:
        """Candidates, skips and alive kinds."""
        return len(self.arcs) + len(self.alive)

    @property
    def n_points(self) -> int:
        """Points at which a candidate starts or stops, and the end."""
        return len(self.arcs) - len(self.active) + 1

    def plan(self, values: Floats) -> tuple[int, ...]:
        """Candidates whose column is nearer to 1 than to 0."""
        return tuple(self.active[column] for column in np.flatnonzero(values[: len(self.active)] > 0.5).tolist())

    def levels(self, values: Floats) -> Floats:
        """Level in every step for values of the columns, whole or not; alive columns are computed."""
        values = values.copy()
        for i, forms in enumerate(self.alive):
            values[len(self.arcs) + i] = max(values[list(form)].sum() for form in forms)
        weight = self.entry_bytes * values[self.entry_column]
        n_steps = len(self.base_bytes)
        begun = np.bincount(self.entry_start, weights=weight, minlength=n_steps + 1)
        ended = np.bincount(self.entry_until, weights=weight, minlength=n_steps + 1)
        levels: Floats = self.base_bytes.astype(np.float64) + np.cumsum((begun - ended)[:-1])
        return levels

    def row(self, step: int) -> Floats:
        """Bytes of each column in `step`."""
        here = (self.entry_start <= step) & (step < self.entry_until)
        row = np.bincount(self.entry_column[here], weights=self.entry_bytes[here], minlength=self.n_columns)
        return row.astype(np.float64)

    def steps_that_matter(self) -> tuple[int, ...]:
        """Steps of which one is the peak in any plan.

        Where nothing ends between two steps, the later stands at least as high as far as decisions go, so the
        earlier is left out if its base is no higher; where nothing begins, the other way round.
        """
        n_steps = len(self.base_bytes)
        begins = np.zeros(n_steps + 1, dtype=np.bool_)
        ends = np.zeros(n_steps + 1, dtype=np.bool_)
        begins[self.entry_start] = True
        ends[self.entry_until] = True
        later = _undominated(self.base_bytes, ends, range(n_steps))
        return tuple(reversed(_undominated(self.base_bytes, begins, later[::-1])))


def _undominated(base_bytes: Ints, barrier: npt.NDArray[np.bool_], order: Sequence[int]) -> list[int]:
    """Steps that no step further along `order` dominates without a barrier in between."""
    kept: list[int] = []  # within the stretch since the last barrier, the bases fall
    floor = 0  # kept[:floor] lie before that barrier
    previous: int | None = None
    for step in order:
        if previous is not None and barrier[min(previous, step) + 1 : max(previous, step) + 1].any():
            floor = len(kept)
        while len(kept) > floor and base_bytes[kept[-1]] <= base_bytes[step]:
            kept.pop()
        kept.append(step)
        previous = step
    return kept


def _undercut_by_none(candidates: Sequence[Candidate]) -> list[int]:
    """Candidates but those of which another covers, holds and adds the same for fewer seconds: no plan needs them.

    Such as skip at the end of a segment what the replay does not come to in any case.
    """
    cheapest: dict[tuple[object, ...], int] = {}
    for c, candidate in enumerate(candidates):
        effect = candidate.start, candidate.stop, frozenset(candidate.holds), tuple(sorted(candidate.additions))
        known = cheapest.setdefault(effect, c)
        if candidate.recompute_seconds < candidates[known].recompute_seconds:
            cheapest[effect] = c
    return sorted(cheapest.values())


def _fits(ledger: Ledger, c: int, budget_bytes: int) -> bool:
    """Whether the candidate alone stays within the budget even if nothing else were ever held."""
    own = slice(ledger.addition_offset[c], ledger.addition_offset[c + 1])
    held = ledger.hold_tensor[ledger.hold_offset[c] : ledger.hold_offset[c + 1]]
    most_bytes = ledger.addition_bytes[own].sum() + ledger.tensor_bytes[held].sum()
    if ledger.base_bytes.max() + most_bytes <= budget_bytes:
        return True
    change = np.zeros(len(ledger.base_bytes) + 1, dtype=np.int64)
    last: dict[int, int] = {}
    for hold in ledger.problem.candidates[c].holds:
        last[hold.tensor] = max(last.get(hold.tensor, 0), hold.until)
    for tensor, until in last.items():
        if until > ledger.free_step[tensor]:
            change[ledger.free_step[tensor]] += ledger.tensor_bytes[tensor]
            change[until] -= ledger.tensor_bytes[tensor]
    np.add.at(change, ledger.addition_start[own], ledger.addition_bytes[own])
    np.subtract.at(change, ledger.addition_until[own], ledger.addition_bytes[own])
    return bool((ledger.base_bytes + np.cumsum(change[:-1])).max() <= budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What keeps a piece alive: skips that save it, candidates that hold it.

    Attributes:
        saves: skips; of two of which one is alive whenever the other is, only that one.
        holds: candidate columns.
        forms: the piece is alive if any of them is 1.
        always: whether it is alive in any plan.
    """

    saves: frozenset[int] = frozenset()
    holds: frozenset[int] = frozenset()
    forms: tuple[Form, ...] = ()
    always: bool = False


class _Kinds:
    """Kinds of pieces seen so far. Going back in time, the pieces of a tensor only gain holders."""

    def __init__(self, arcs: Sequence[tuple[int, int]], n_candidates: int) -> None:
        self.alive: list[tuple[Form, ...]] = []
        self.nothing = _Kind()
        self._arcs = arcs
        self._n_candidates = n_candidates
        self._known: dict[tuple[_Kind, frozenset[int]], _Kind] = {}
        self._alive_column: dict[tuple[Form, ...], int] = {}
        covers: list[set[int]] = [set() for _ in range(len(arcs) - n_candidates)]
        for column, (first, last) in enumerate(arcs[:n_candidates]):
            for stretch in range(first, last):
                covers[stretch].add(column)
        self._covers = [frozenset(cover) for cover in covers]

    def columns(self, kind: _Kind) -> Form:
        """Columns whose sum says whether a piece of this kind is alive."""
        if len(kind.forms) == 1:
            return kind.forms[0]
        if kind.forms not in self._alive_column:
            self._alive_column[kind.forms] = len(self._arcs) + len(self.alive)
            self.alive.append(kind.forms)
        return (self._alive_column[kind.forms],)

    def joined(self, kind: _Kind, holders: frozenset[int]) -> _Kind:
        """Kind of a piece that these hold too."""
        key = (kind, holders)
        if key not in self._known:
            self._known[key] = self._join(kind, holders)
        return self._known[key]

    def _join(self, kind: _Kind, holders: frozenset[int]) -> _Kind:
        if kind.always or ALWAYS in holders:
            return _Kind(always=True)
        added = frozenset(column for column in holders if column < self._n_candidates) - kind.holds
        holds = kind.holds | added
        # Kept unless covered by a candidate that does not hold: the fewer of these, the more often alive.
        freeing = {s: self._cover(s) - holds for s in kind.saves | (holders - added - kind.holds)}
        if not all(freeing.values()):
            return _Kind(always=True)
        saves: list[int] = []
        for s in sorted(freeing, key=lambda s: (len(freeing[s]), s)):
            if not any(freeing[other] <= freeing[s] for other in saves):
                saves.append(s)
        # A kind with a column of its own is at least the kind that it grew from: nothing is said twice.
        grown = len(kind.forms) > 1
        forms = [frozenset(form) for form in ([self.columns(kind)] if grown else kind.forms)]
        forms += [(self._cover(s) & holds) | {s} for s in saves]
        for point in sorted({self._arcs[column][0] for column in added}):
            over = self._covers[point] & holds
            if not any(over <= self._cover(s) for s in saves):
                forms.append(over)
        said = [frozenset(form) for form in kind.forms] if grown else []
        forms = [form for form in forms if not any(form <= other for other in said)]
        forms = [form for form in dict.fromkeys(forms) if not any(form < other for other in forms)]
        return _Kind(saves=frozenset(saves), holds=holds, forms=tuple(sorted(tuple(sorted(form)) for form in forms)))

    def _cover(self, skip: int) -> frozenset[int]:
        return self._covers[skip - self._n_candidates]
