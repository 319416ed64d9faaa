"""Dynamic programming along the calls: exact, up to rounding, where a problem is a chain.

    forward    ───▶ held bytes u grow as calls are kept ───▶ │ apex
    backward   ◀─── calls give back, last first ◀─────────── │
                        a segment is restored on top of what the calls *before* it hold

In a chain, backward reaches a segment when all later calls have given back what they held. Its replay then
stands on the bytes u that earlier calls hold, and on nothing else: whether it fits depends on u alone, and the
cheapest way to every (point, u) can be tabled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .families import TIME_LIMIT_SECONDS, Plan, cheapest
from .formulation import Floats, Formulation
from .ledger import Ints, Ledger
from .problem import Problem, Solution

SLOTS = 2000
"""Parts of the room in which held bytes are counted."""

TRIES = 6
"""How often the room is corrected by what the judge finds too high."""

BISECTIONS = 12
"""Steps towards the lowest peak: to a four-thousandth of the range."""


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Choose by dynamic programming over the calls and the bytes held at the end of forward.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: not needed; it takes a fraction of a second.

    Returns:
        The cheapest plan found that the judge finds to fit.

    Raises:
        Infeasible: no such plan fits.

    Source: Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains", for flat segments over nested
    calls.
    Exact on chains, also among several candidates of one span, up to rounding (none where the budget is less than
    `SLOTS` times the greatest common divisor of all sizes); a heuristic where tensors are shared far apart;
    O((candidates + calls) × slots).
    """
    ledger = Ledger.of(problem)
    plans = ChainPlans.of(ledger).plans(budget_bytes)
    return cheapest(ledger, plans, budget_bytes=budget_bytes, solver="chain", trimmed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlans:
    """The dynamic programme for one problem, to be asked for several budgets.

    Attributes:
        ledger: the problem.
        plain_bytes: peak of the plain plan.
        chain: None where there is nothing to choose from.
    """

    ledger: Ledger
    plain_bytes: int
    chain: Chain | None

    @classmethod
    def of(cls, ledger: Ledger) -> ChainPlans:
        """Set it up for all budgets below the plain peak."""
        plain_bytes = ledger.peak(())
        form = Formulation.of(ledger, plain_bytes)
        return cls(ledger=ledger, plain_bytes=plain_bytes, chain=Chain.of(form) if form.active else None)

    def plans(self, budget_bytes: int) -> Iterator[Plan]:
        """The plain plan, plans for the budget, and, if none of them fits, plans for ever less room."""
        yield ()
        if self.plain_bytes <= budget_bytes or self.chain is None:
            return
        found = False
        for fitted in _by_room(self.ledger, self.chain, budget_bytes):
            found = found or self.ledger.peak(fitted) <= budget_bytes
            yield fitted
        if found:
            return
        low_bytes, high_bytes = int(self.chain.form.base_bytes.max()), self.plain_bytes
        for _ in range(BISECTIONS):
            middle_bytes = (low_bytes + high_bytes) // 2
            plan = self.chain.plan(middle_bytes)
            if plan is None:
                low_bytes = middle_bytes
            else:
                high_bytes = middle_bytes
                yield plan


def _by_room(ledger: Ledger, chain: Chain, budget_bytes: int) -> Iterator[Plan]:
    """Plans for the room that the budget leaves, corrected by what the judge finds too high, or too low by a slot."""
    tight_bytes: int | None = None  # most room that gave a plan that fits
    loose_bytes: int | None = None  # least room that gave one that does not
    room_bytes = budget_bytes
    for _ in range(TRIES):
        plan = chain.plan(room_bytes)
        if plan is None:
            return
        yield plan
        above_bytes = ledger.peak(plan) - budget_bytes
        if above_bytes > 0:
            loose_bytes = room_bytes
        else:
            tight_bytes = room_bytes
        if tight_bytes is not None and loose_bytes is not None:
            room_bytes = (tight_bytes + loose_bytes) // 2
        elif above_bytes > 0 or above_bytes < -(budget_bytes // SLOTS):
            room_bytes -= above_bytes
        else:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Arcs with what they hold at the apex, and how high memory stands while their own backward runs.

    Attributes:
        form: the problem.
        held_bytes: per arc, at the apex.
        own_peak_bytes: per arc, over the steps of its own backward: the base, and what it holds and restores.
        apex_bytes: base from the apex to the first change after it.
    """

    form: Formulation
    held_bytes: Floats
    own_peak_bytes: Floats
    apex_bytes: int

    @classmethod
    def of(cls, form: Formulation) -> Chain:
        """Find the apex, and each arc's own stretch of backward: from its first release or restoration on."""
        n_arcs, n_steps = len(form.arcs), len(form.base_bytes)
        arcs, starts, untils, sizes = _charged(form)
        change = np.zeros(n_steps + 1, dtype=np.int64)
        kept = arcs >= len(form.active)
        np.add.at(change, starts[kept], sizes[kept])
        np.subtract.at(change, untils[kept], sizes[kept])
        apex = int(np.cumsum(change[:-1]).argmax())
        here = (starts <= apex) & (apex < untils)
        held = np.bincount(arcs[here], weights=sizes[here], minlength=n_arcs).astype(np.float64)

        times = np.unique(np.concatenate(([apex], starts, untils)))
        times = times[times >= apex]
        own_peak = np.full(n_arcs, -np.inf)
        offset = np.searchsorted(arcs, np.arange(n_arcs + 1))
        for arc in range(n_arcs):
            own = slice(offset[arc], offset[arc + 1])
            start, until = starts[own], untils[own]
            changes = np.concatenate((start[start > apex], until[until > apex] - 1))
            if not changes.size:
                continue
            # Steps since the last change before belong to it as well: it still holds everything then.
            first, last = int(times[max(np.searchsorted(times, changes.min()) - 1, 0)]), int(until.max())
            size = np.where(until > first, sizes[own], 0)
            change = np.zeros(last - first + 1, dtype=np.int64)
            np.add.at(change, np.clip(start - first, 0, None), size)
            np.subtract.at(change, np.clip(until - first, 0, None), size)
            own_peak[arc] = (form.base_bytes[first:last] + np.cumsum(change[:-1])).max()
        apex_end = int(times[1]) if len(times) > 1 else n_steps
        apex_bytes = int(form.base_bytes[apex:apex_end].max())
        return cls(form=form, held_bytes=held, own_peak_bytes=own_peak, apex_bytes=apex_bytes)

    def plan(self, room_bytes: int) -> Plan | None:
        """Cheapest path whose arcs all fit into `room_bytes`, after rounding; None if there is none."""
        form = self.form
        slot_bytes = (room_bytes - int(form.base_bytes.min())) / SLOTS
        if slot_bytes <= 0:
            return None
        slot_bytes = max(slot_bytes, form.grain_bytes)  # all bytes are whole grains, so coarse ones round nothing
        problem = form.ledger.problem
        held = self._slots(slot_bytes)
        fits = np.clip(np.floor((room_bytes - self.own_peak_bytes) / slot_bytes), -1, SLOTS).astype(np.int64)
        top = int(np.clip((room_bytes - self.apex_bytes) // slot_bytes, -1, SLOTS))
        cost = [problem.candidates[c].recompute_seconds for c in form.active] + [0.0] * (form.n_points - 1)
        leaving: list[list[int]] = [[] for _ in range(form.n_points)]
        for arc, (first, _) in enumerate(form.arcs):
            leaving[first].append(arc)
        seconds = np.full((form.n_points, SLOTS + 1), np.inf)
        seconds[0, 0] = 0.0
        room = np.minimum(fits, SLOTS - held) + 1  # slots before an arc that leave it room
        for point in range(form.n_points):
            for arc in leaving[point]:
                most, on = int(room[arc]), int(held[arc])
                if most > 0:
                    onto = seconds[form.arcs[arc][1], on : on + most]
                    np.minimum(onto, seconds[point, :most] + cost[arc], out=onto)
        if top < 0 or not np.isfinite(seconds[-1, : top + 1]).any():
            return None
        arriving: list[list[int]] = [[] for _ in range(form.n_points)]
        for arc, (_, there) in enumerate(form.arcs):
            arriving[there].append(arc)
        point, slot = form.n_points - 1, int(seconds[-1, : top + 1].argmin())
        chosen: list[int] = []
        while point:
            here = seconds[point, slot]
            arc = next(  # the very sum is found again
                arc
                for arc in arriving[point]
                if 0 <= (before := slot - held[arc]) < room[arc]
                and seconds[form.arcs[arc][0], before] + cost[arc] == here
            )
            if arc < len(form.active):
                chosen.append(form.active[arc])
            point, slot = form.arcs[arc][0], slot - int(held[arc])
        return tuple(sorted(chosen))

    def _slots(self, slot_bytes: float) -> Ints:
        """What each arc holds in slots, rounded so that what a row of arcs holds is off by one slot at most.

        Each arc is rounded from where the sum up to it stands if everything before it is kept: equal arcs at
        different places round differently.
        """
        first = np.array([first for first, _ in self.form.arcs])
        before = np.concatenate(([0.0], np.cumsum(self.held_bytes[len(self.form.active) :])))[first] / slot_bytes
        slots: Ints = (np.rint(before + self.held_bytes / slot_bytes) - np.rint(before)).astype(np.int64)
        return slots


def _charged(form: Formulation) -> tuple[Ints, Ints, Ints, Ints]:
    """Entries of arcs alone (arc, start, until, bytes), by arc.

    A piece that several stretches save is charged to the one arc by which a path passes the first of them,
    unless that arc covers them all: nothing is counted twice, and nothing is freed by covering one saver of two.
    What only candidates hold is left to the judge.
    """
    n_candidates, n_arcs = len(form.active), len(form.arcs)
    first, last = np.array(form.arcs, dtype=np.int64).T
    charged: dict[int, Ints] = {}
    grown: list[frozenset[int]] = []
    for i, forms in enumerate(form.alive):
        columns: frozenset[int] = frozenset(c for one in forms for c in one)
        columns = columns.union(*(grown[c - n_arcs] for c in columns if c >= n_arcs))
        grown.append(columns)
        points = [form.arcs[c][0] for c in columns if n_candidates <= c < n_arcs]
        if points:
            over = (first <= min(points)) & (min(points) < last)
            over &= (last <= max(points)) | np.isin(np.arange(n_arcs), list(columns))
            charged[n_arcs + i] = np.flatnonzero(over)
    alone = form.entry_column < n_arcs
    rows = np.flatnonzero(~alone)
    arcs = [charged.get(int(form.entry_column[row]), np.zeros(0, dtype=np.int64)) for row in rows]
    source = np.concatenate((np.flatnonzero(alone), np.repeat(rows, [len(each) for each in arcs]))).astype(np.int64)
    arc = np.concatenate((form.entry_column[alone], *arcs))
    order = np.argsort(arc, kind="stable")
    source = source[order]
    return arc[order], form.entry_start[source], form.entry_until[source], form.entry_bytes[source]
