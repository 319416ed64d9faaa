"""Dynamic programming along the calls: exact, up to rounding, where a problem is a chain.

    forward    ───▶ held bytes u grow as calls are kept ───▶ │ apex
    backward   ◀─── calls give back, last first ◀─────────── │
                        a segment is restored on top of what the calls *before* it hold

In a chain, backward reaches a segment when all later calls have given back what they held. Its replay then comes on top
of the bytes u that earlier calls hold, and of nothing else: whether it fits depends on u alone.

    symbol   meaning                                                        name here
    q→p      an arc: a candidate, or the stretch of calls to the next point ``Columns.arcs``
    h        bytes that the arc holds at the apex                           ``held_bytes``
    o        highest level of the base and the arc's own bytes, in the      ``own_peak_bytes``
             steps of its own backward
    s        recompute seconds of the arc; 0 for a stretch                  ``Candidate.recompute_seconds``
    M        room                                                           ``room_bytes``
    C[p, u]  fewest seconds of a path to point p that holds u bytes         ``seconds[p, u]``

    C[0, 0] = 0
    C[p, u] = min over arcs q→p of  C[q, u − h] + s      where  u − h + o ≤ M

The answer is the least C[last, u] with u + base at the apex ≤ M. Bytes are counted in slots.

Example: two blocks of 1 second each hold 6 bytes if kept, and 1 if recomputed, which restores the 6. With M = 7 one of
them must be recomputed. If it is the second, its replay comes on top of the 6 bytes of the first: 6 + 1 + 6 > 7. If it
is the first, u is 1 before the second and 7 at the apex, and its own replay needs 1 + 6 bytes. So the first is
recomputed, for 1 second.

Source: Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains", for flat segments over nested calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..columns import Columns
from ..common import Plan
from ..deadline import NEVER, Deadline
from ..judge import Floats, Ints, Judge, course

SLOTS = 2000  # parts of the room in which held bytes are counted
MOST_CELLS = 20_000_000  # points times slots, 160 MB: where there are more than 10,000 points, slots are fewer
COARSER = 8  # once time is up, slots are fewer by this factor
TRIES = 6  # how often the room is corrected by the peak that the judge finds
BISECTIONS = 12  # steps towards the lowest peak: to a four-thousandth of the range


def chain_plans(judge: Judge, budget_bytes: int, *, deadline: Deadline = NEVER) -> Iterator[Plan]:
    """Choose by dynamic programming over the calls and the bytes held at the end of forward.

    Yields the plain plan, plans for the budget, and, if none of them fits, plans for ever less room. Segments that are
    not needed are dropped.

    Source: Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains".
    Exact on chains, also among several candidates of one span, up to rounding (none where the budget is less than
    `SLOTS` times the greatest common divisor of all sizes); a heuristic where tensors are shared far apart;
    O((candidates + calls) × slots).
    """
    yield from Chain(judge).plans(budget_bytes, deadline=deadline)


class Chain:
    """The arcs of a problem, to be asked for several budgets; symbols as above, per arc.

    `apex_bytes` is the base from the apex to the first change after it.
    """

    def __init__(self, judge: Judge) -> None:
        """Find the apex, and each arc's own steps of backward: from its first release or restoration on."""
        self.columns = columns = Columns(judge)
        n_arcs, n_steps = len(columns.arcs), len(columns.base_bytes)
        arcs, starts, untils, sizes = _charged(columns)
        kept = arcs >= columns.n_candidates
        apex = int(course(n_steps, starts[kept], untils[kept], sizes[kept]).argmax())
        here = (starts <= apex) & (apex < untils)
        self.held_bytes: Floats = np.bincount(arcs[here], weights=sizes[here], minlength=n_arcs).astype(np.float64)

        times = np.unique(np.concatenate(([apex], starts, untils)))
        times = times[times >= apex]
        self.own_peak_bytes = np.full(n_arcs, -np.inf)
        offset = np.searchsorted(arcs, np.arange(n_arcs + 1))
        for arc in range(n_arcs):
            own = slice(offset[arc], offset[arc + 1])
            start, until = starts[own], untils[own]
            changes = np.concatenate((start[start > apex], until[until > apex] - 1))
            if changes.size:
                # Steps since the change before belong to it as well: the arc still holds everything then.
                first, last = int(times[max(np.searchsorted(times, changes.min()) - 1, 0)]), int(until.max())
                size = np.where(until > first, sizes[own], 0)
                stands = course(last - first, np.clip(start - first, 0, None), np.clip(until - first, 0, None), size)
                self.own_peak_bytes[arc] = (columns.base_bytes[first:last] + stands).max()
        apex_end = int(times[1]) if len(times) > 1 else n_steps
        self.apex_bytes = int(columns.base_bytes[apex:apex_end].max())

    def plans(self, budget_bytes: int, *, deadline: Deadline = NEVER) -> Iterator[Plan]:
        """Yield plans for a budget, the plain step first: those by the room that is left, and plans of a bisection.

        Once time is up, bytes are counted more coarsely, and one plan that fits is enough.
        """
        yield ()
        plain_bytes = self.columns.judge.peak(())
        if plain_bytes <= budget_bytes or not self.columns.n_candidates:
            return
        found = False
        for plan in self._by_room(budget_bytes, deadline):
            found = found or self.columns.judge.peak(plan) <= budget_bytes
            yield plan
            if found and deadline.passed:
                return
        low_bytes, high_bytes = int(self.columns.base_bytes.max()), plain_bytes
        for _ in range(0 if found else BISECTIONS):
            room_bytes = (low_bytes + high_bytes) // 2
            tighter = self.plan(room_bytes, self._n_slots(deadline))
            if tighter is None:
                low_bytes = room_bytes
            else:
                high_bytes = room_bytes
                yield tighter

    def _n_slots(self, deadline: Deadline) -> int:
        """Number of slots that memory and time allow."""
        slots = min(SLOTS, MOST_CELLS // self.columns.n_points + 1)
        return slots // COARSER + 1 if deadline.passed else slots

    def _by_room(self, budget_bytes: int, deadline: Deadline) -> Iterator[Plan]:
        """Plans for the budget as room; the room is then corrected if their peak is too high, or a slot too low."""
        tight_bytes: int | None = None  # most room that gave a plan that fits
        loose_bytes: int | None = None  # least room that gave one that does not
        room_bytes = budget_bytes
        for _ in range(TRIES):
            slots = self._n_slots(deadline)
            plan = self.plan(room_bytes, slots)
            if plan is None:
                return
            yield plan
            above_bytes = self.columns.judge.peak(plan) - budget_bytes
            if above_bytes > 0:
                loose_bytes = room_bytes
            else:
                tight_bytes = room_bytes
            if tight_bytes is not None and loose_bytes is not None:
                room_bytes = (tight_bytes + loose_bytes) // 2
            elif above_bytes > 0 or above_bytes < -(budget_bytes // slots):
                room_bytes -= above_bytes
            else:
                return

    def plan(self, room_bytes: int, slots: int = SLOTS) -> Plan | None:
        """Cheapest path whose arcs all fit into `room_bytes`, after rounding to slots; None if there is none."""
        columns = self.columns
        slot_bytes = (room_bytes - int(columns.base_bytes.min())) / slots
        if slot_bytes <= 0:
            return None
        slot_bytes = max(slot_bytes, columns.grain_bytes)  # sizes are whole grains, so such slots round nothing
        candidates, n_points = columns.judge.problem.candidates, columns.n_points
        held = self._slots(slot_bytes)
        fits = np.clip(np.floor((room_bytes - self.own_peak_bytes) / slot_bytes), -1, slots).astype(np.int64)
        top = int(np.clip((room_bytes - self.apex_bytes) // slot_bytes, -1, slots))
        # So many numbers of slots that a path may hold before an arc leave the arc room: 0, 1, and so on.
        room = np.minimum(fits, slots - held) + 1
        cost = [candidate.recompute_seconds for candidate in candidates] + [0.0] * (n_points - 1)
        arriving: list[list[int]] = [[] for _ in range(n_points)]
        for arc, (_, last) in enumerate(columns.arcs):
            arriving[last].append(arc)
        seconds = self._least_seconds(room, held, cost, slots)
        if top < 0 or not np.isfinite(seconds[-1, : top + 1]).any():
            return None
        point, slot = n_points - 1, int(seconds[-1, : top + 1].argmin())
        chosen: list[int] = []
        while point:
            here = seconds[point, slot]
            arc = next(  # the same floating-point sum again, so == is safe
                arc
                for arc in arriving[point]
                if 0 <= (before := slot - held[arc]) < room[arc]
                and seconds[columns.arcs[arc][0], before] + cost[arc] == here
            )
            if arc < columns.n_candidates:
                chosen.append(arc)
            point, slot = columns.arcs[arc][0], slot - int(held[arc])
        return tuple(sorted(chosen))

    def _least_seconds(self, room: Ints, held: Ints, cost: list[float], slots: int) -> Floats:
        """Least seconds of any path to each point, by the slots that it holds there."""
        arcs, n_points = self.columns.arcs, self.columns.n_points
        leaving: list[list[int]] = [[] for _ in range(n_points)]
        for arc, (first, _) in enumerate(arcs):
            leaving[first].append(arc)
        seconds = np.full((n_points, slots + 1), np.inf)
        seconds[0, 0] = 0.0
        for point in range(n_points):
            for arc in leaving[point]:
                most, on = int(room[arc]), int(held[arc])
                if most > 0:
                    onto = seconds[arcs[arc][1], on : on + most]
                    np.minimum(onto, seconds[point, :most] + cost[arc], out=onto)
        return seconds

    def _slots(self, slot_bytes: float) -> Ints:
        """Slots that each arc holds, rounded so that the sum over a row of arcs is off by one slot at most.

        An arc is rounded together with the sum of everything before it, as if kept. So equal arcs at different places
        may be rounded differently.
        """
        first = np.array([first for first, _ in self.columns.arcs])
        kept = self.held_bytes[self.columns.n_candidates :]
        before = np.concatenate(([0.0], np.cumsum(kept)))[first] / slot_bytes
        slots: Ints = (np.rint(before + self.held_bytes / slot_bytes) - np.rint(before)).astype(np.int64)
        return slots


def _charged(columns: Columns) -> tuple[Ints, Ints, Ints, Ints]:
    """Entries (arc, start, until, bytes), by arc: those of pieces are charged to arcs.

    A piece that several stretches save is charged to the arc by which a path passes the first of them, unless that arc
    covers them all. So nothing is counted twice, and to cover one of two savers frees nothing. Pieces that only
    candidates hold are left to the judge.
    """
    n_candidates, n_arcs = columns.n_candidates, len(columns.arcs)
    first, last = np.array(columns.arcs, dtype=np.int64).reshape(-1, 2).T
    charged: dict[int, Ints] = {}
    grown: list[frozenset[int]] = []
    for i, forms in enumerate(columns.alive):
        holders: frozenset[int] = frozenset(c for form in forms for c in form)
        holders = holders.union(*(grown[c - n_arcs] for c in holders if c >= n_arcs))
        grown.append(holders)
        points = [columns.arcs[c][0] for c in holders if n_candidates <= c < n_arcs]
        if points:
            over = (first <= min(points)) & (min(points) < last)
            over &= (last <= max(points)) | np.isin(np.arange(n_arcs), list(holders))
            charged[n_arcs + i] = np.flatnonzero(over)
    alone = columns.entry_column < n_arcs
    rows = np.flatnonzero(~alone)
    arcs = [charged.get(int(columns.entry_column[row]), np.zeros(0, dtype=np.int64)) for row in rows]
    source = np.concatenate((np.flatnonzero(alone), np.repeat(rows, [len(each) for each in arcs]))).astype(np.int64)
    arc = np.concatenate((columns.entry_column[alone], *arcs))
    order = np.argsort(arc, kind="stable")
    source = source[order]
    return arc[order], columns.entry_start[source], columns.entry_until[source], columns.entry_bytes[source]
