"""Every choice worth having in a dataflow: a sweep over the units that carries one frontier per state.

    units   0   1   2 │ 3   4                 rows: (state, bytes, seconds), a table that grows and is thinned
    items   ├───a─────┼───┤                   state: how each item stands that a unit still to come touches
                ├──b──┼───────┤                      ABSENT    its maker did not run again, nothing holds it (yet)
                                                     HELD      its maker did not run again, it is held
                                                     AGAIN     its maker runs again

Among rows of one state, those that another beats in bytes and seconds can never be part of a best choice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .dataflow import Dataflow, HostSeconds

__all__ = ["frontier"]

Ints = npt.NDArray[np.int64]

ABSENT, HELD, AGAIN = 0, 1, 2

BITS = 2
"""Bits for how one item stands."""

SLOTS = 30
"""Items that may stand at one time: what fits into 64 bits, less one slot for the end of the replay."""

MOST_ROWS = 60_000
"""A table that stays larger than this is given up."""

TICKS = 2**36
"""Parts into which the seconds of all units together are counted, or half as many, so that some 10⁸ states fit into 63
bits."""


def frontier(
    flow: Dataflow,
    host: HostSeconds | None = None,
    *,
    no_mode: bool = False,
    most_seconds: float = float("inf"),
    deadline: float = float("inf"),
) -> tuple[tuple[int, ...], ...] | None:
    """Choices of which none holds as few bytes in as few seconds as another.

    Args:
        flow: the dataflow.
        host: what keeping a unit costs. It is counted once a held item, so that a unit of several results may be
            charged too much here; costs that do not add up over units are left out.
        no_mode: neither keep nor skip one of several functions of a call, so that no function mode is needed; what
            lies behind the last recomputed unit is not run and may be left.
        most_seconds: leave out choices whose units take longer. Those that hold more than the plain step are
            left out in any case.
        deadline: on the clock of `time.perf_counter`.

    Returns:
        Units to recompute, fewest bytes first; None if the time, the rows or the items standing at one time are
        too many.

    Source: the profile of a graph as state of a dynamic programme (Lengauer 1981, "Black-white pebbles and graph
    separation"), with frontiers in place of values.
    Exact, up to the rounding of seconds to 2⁻³⁵ of their sum; O(units × rows log rows), where rows grow
    exponentially in the number of items that stand at one time.
    """
    sweep = _Sweep.of(flow, host or HostSeconds(), no_mode)
    if sweep is None:
        return None
    most_ticks = int(min(most_seconds / sweep.tick_seconds * (1 + 1e-9) + len(flow.units), 2.0**62))
    states, held, ticks = (np.zeros(1, dtype=np.int64) for _ in range(3))
    held += sweep.outside_bytes
    steps: list[tuple[Ints, npt.NDArray[np.bool_]]] = []
    for u in range(len(flow.units)):
        tables = [table for again in (False, True) if (table := sweep.step(u, again, states, held, ticks)) is not None]
        if not tables:
            return ()
        states, held, ticks, source, again = (np.concatenate(column) for column in zip(*tables, strict=True))
        fits = (ticks <= most_ticks) & (held <= flow.plain_bytes)
        kept = np.flatnonzero(fits)[_undominated(states[fits], held[fits], ticks[fits])]
        if not kept.size:
            return ()
        if kept.size > MOST_ROWS or time.perf_counter() > deadline:
            return None
        states, held, ticks = states[kept], held[kept], ticks[kept]
        steps.append((source[kept], again[kept].astype(np.bool_)))
    best = _undominated(np.zeros(len(held), dtype=np.int64), held, ticks)
    choices: list[tuple[int, ...]] = []
    for row in best.tolist():
        units: list[int] = []
        for u in range(len(steps) - 1, -1, -1):
            source, chosen = steps[u]
            if chosen[row]:
                units.append(u)
            row = int(source[row])
        choices.append(tuple(reversed(units)))
    return tuple(choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    """A dataflow made ready for the sweep.

    Attributes:
        flow: the dataflow.
        slot: per item, where in the state it stands; -1 where nothing depends on it.
        leaves: per unit, the state bits of items that no later unit touches.
        grouped: per unit, the items that earlier units made with it.
        keep_ticks: per item, for keeping its maker.
        run_ticks: per unit.
        tick_seconds: length of a tick.
        outside_bytes: saved items from outside.
        no_mode: as asked.
    """

    flow: Dataflow
    slot: tuple[int, ...]
    leaves: tuple[int, ...]
    grouped: tuple[tuple[int, ...], ...]
    keep_ticks: tuple[int, ...]
    run_ticks: tuple[int, ...]
    tick_seconds: float
    outside_bytes: int
    no_mode: bool

    @classmethod
    def of(cls, flow: Dataflow, host: HostSeconds, no_mode: bool) -> _Sweep | None:
        """Give each item a slot for as long as it stands; None if there are too many."""
        n_items = len(flow.items)
        first, last = [-1] * n_items, [-1] * n_items
        for u, unit in enumerate(flow.units):
            for t in (*unit.reads, *unit.makes):
                first[t] = u if first[t] < 0 else first[t]
                last[t] = u
        slot, leaves = [-1] * n_items, [0] * len(flow.units)
        spare = list(range(SLOTS - 1, -1, -1))
        for u, unit in enumerate(flow.units):
            touched = tuple(dict.fromkeys((*unit.reads, *unit.makes)))
            for t in touched:
                fixed = not flow.makers[t] and (flow.items[t].saved or flow.items[t].free)
                if first[t] == u and last[t] > u and not fixed:
                    if not spare:
                        return None
                    slot[t] = spare.pop()
            for t in touched:
                if last[t] == u and slot[t] >= 0:
                    leaves[u] |= 3 << BITS * slot[t]
                    spare.append(slot[t])
        # A power of two: then equal sums of different seconds are, more often than not, as many ticks.
        _, exponent = math.frexp(sum(unit.seconds + host.kept_unit_seconds for unit in flow.units))
        tick_seconds = math.ldexp(1.0, exponent) / TICKS
        keep_ticks = round(host.kept_unit_seconds / tick_seconds)
        grouped: list[list[int]] = [[] for _ in flow.units]
        for t, makers in enumerate(flow.makers):
            for u in makers[1:]:
                grouped[u].append(t)
        return cls(
            flow=flow,
            slot=tuple(slot),
            leaves=tuple(leaves),
            grouped=tuple(tuple(each) for each in grouped),
            keep_ticks=tuple(keep_ticks if makers else 0 for makers in flow.makers),
            run_ticks=tuple(round(unit.seconds / tick_seconds) for unit in flow.units),
            tick_seconds=tick_seconds,
            outside_bytes=sum(
                item.bytes
                for item, makers in zip(flow.items, flow.makers, strict=True)
                if item.saved and not item.free and not makers
            ),
            no_mode=no_mode,
        )

    def step(
        self, u: int, again: bool, states: Ints, held: Ints, ticks: Ints
    ) -> tuple[Ints, Ints, Ints, Ints, Ints] | None:
        """Rows after unit `u` if it is recomputed, or if it is not, with where each comes from; None if it must not."""
        unit, items = self.flow.units[u], self.flow.items
        if again and not unit.recomputable:
            return None
        made = tuple(dict.fromkeys(unit.makes))
        firsts = [t for t in made if self.flow.makers[t][0] == u]
        stops = False  # whether leaving it alone ends the replay
        if not again:
            saved = [t for t in firsts if items[t].saved]
            if not all(self.flow.holdable[t] for t in saved):
                return None
            if self.no_mode and self.flow.needs_mode[u]:
                if saved:
                    return None
                stops = True
        here = np.arange(len(states), dtype=np.int64)
        allowed = np.ones(len(states), dtype=np.bool_)
        ended = 1 << BITS * SLOTS
        if again:
            allowed &= (states & ended) == 0
        for t in self.grouped[u]:
            allowed &= (self._standing(t, states) == AGAIN) == again
        missing: list[int] = []
        alone_bytes = 0  # read by this unit only
        if again:
            for t in set(unit.reads) - set(made):
                if self.slot[t] < 0:
                    alone_bytes += 0 if items[t].saved or items[t].free else items[t].bytes
                elif self.flow.holdable[t]:
                    missing.append(t)
                else:
                    allowed &= self._standing(t, states) != ABSENT
        here = here[allowed]
        states, held, ticks = states[here], held[here] + alone_bytes, ticks[here].copy()
        for t in missing:
            lacks = self._standing(t, states) == ABSENT
            held[lacks] += 0 if items[t].free else items[t].bytes
            ticks[lacks] += self.keep_ticks[t]
            states = states | (lacks.astype(np.int64) * HELD << BITS * self.slot[t])
            if self.no_mode and any(self.flow.needs_mode[m] for m in self.flow.makers[t]):
                fine = ~lacks
                here, states, held, ticks = here[fine], states[fine], held[fine], ticks[fine]
        for t in firsts:
            standing = AGAIN if again else HELD if items[t].saved else ABSENT
            if standing == HELD:
                held += 0 if items[t].free else items[t].bytes
                ticks += self.keep_ticks[t]
            if self.slot[t] >= 0:
                states = states | (standing << BITS * self.slot[t])
        if again:
            ticks += self.run_ticks[u]
        if stops:
            states = states | ended
        states = states & ~self.leaves[u]
        return states, held, ticks, here, np.full(len(here), int(again), dtype=np.int64)

    def _standing(self, t: int, states: Ints) -> Ints:
        standing: Ints = (states >> BITS * self.slot[t]) & 3
        return standing


def _undominated(states: Ints, held: Ints, ticks: Ints) -> Ints:
    """Rows that no other of the same state equals or beats in both; by state, then by bytes."""
    order = np.lexsort((ticks, held, states))
    new_state = np.append(True, np.diff(states[order]) != 0) if order.size else np.zeros(0, dtype=np.bool_)
    # Each state's ticks lie below those of the one before it, so that the running least starts anew.
    span = int(ticks.max(initial=0)) + 1
    lowered = ticks[order] - np.cumsum(new_state) * span
    before = np.append(np.iinfo(np.int64).max, np.minimum.accumulate(lowered)[:-1])
    return np.asarray(order[lowered < before], dtype=np.int64)
