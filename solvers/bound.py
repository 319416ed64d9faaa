"""How many recompute seconds any method needs, with every op free: recomputed, kept or skipped, as often as it likes.

    forward              apex              backward
    ├── run ──┼─ run ──┼──│──┼── reads t ──┼── reads w ──┤
                          s                                    one row: what stands in step s fits into the budget

**Why a row holds for every schedule.** Fix a step s. Of any schedule let H be the tensors that stand in s and R the
units that it runs again *after* s. A tensor that backward reads after s, whose first life has ended, is in H or is
made again: 1 ≤ H + R of its maker. A unit that is run again after s reads tensors that are in H or are made again
after s: R ≤ H + R of the maker. So the least-bytes closure of R stands in s, beside what stands there in any case.
Nothing is said about times other than s: how often a unit runs again (once, at least), and whether a tensor is
held for a part of the time, is free.

**Several rows.** Each row has an R of its own, for the units run again after its own step. They share only the cost:
a unit that runs again after any of the steps is paid once. (One R for all rows would be wrong: what is run
again early needs its inputs early, and not in later steps.)

Relaxed to fractions, each row is the parametric programme of a minimum closure, solved by cuts; see `closure`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from .backends import Backend, Backends
from .closure import TICKS
from .dataflow import Dataflow
from .formulation import Floats
from .joint import joint_bound
from .lives import Lives, Steps
from .row import Row

TIME_LIMIT_SECONDS = 10.0

ROWS_PER_ROUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A lower bound on recompute seconds.

    Attributes:
        seconds: no schedule within the limit costs less; infinite where there is no such schedule.
        converged: whether the search for rows came to its end; otherwise time ran out, and the bound is weaker but
            as valid.
        steps: the steps whose rows were used.
    """

    seconds: float
    converged: bool
    steps: tuple[int, ...]


def peak_bound(
    flow: Dataflow,
    lives: Lives,
    budget_bytes: int,
    *,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
    backend: Backend | None = None,
) -> Bound:
    """Bound the recompute seconds of any method that stays within a peak, over all steps of the training step.

    Holds for schedules that run the model's forward and backward in the given order and may hold, drop and run
    again anything beside; temporaries of what is run again are not counted.

    Args:
        flow: the ops of the whole model. What it says about keeping and recomputing units is ignored: a method may
            copy, and may run an op that draws random numbers again.
        lives: when what stands.
        budget_bytes: highest level in any step.
        time_limit_seconds: after so long the bound reached is returned.
        backend: ``highs`` or ``cbc`` for several rows at once; None takes HiGHS where it is installed and works.

    Returns:
        The bound, and the steps that it rests on.

    Raises:
        InvalidProblem: `lives` does not fit `flow`.

    Source: the Lagrangian dual of Everett 1963, with prices after Eisner and Severance 1976 and cuts after
    Picard 1976; the three states of a unit reduce the A and R variables of Jain et al. 2020, "Checkmate", whose
    memory rows are made when they are broken (Dantzig, Fulkerson and Johnson 1954).
    A lower bound, and near the optimum of the relaxation with all rows if the time suffices: a row is made where
    the level, estimated from above, peaks above the budget. One row by cuts, several as one linear programme.
    """
    deadline = time.perf_counter() + time_limit_seconds
    steps = Steps.of(flow, lives)
    backends: Backends | None = None
    seconds = [unit.seconds for unit in flow.units]
    again = np.zeros(len(flow.units))
    rows: dict[int, Row] = {}
    best, converged = 0.0, True
    units: dict[int, float] = {}
    while converged and (broken := _broken(steps, again, budget_bytes, rows)):
        for step in broken[: ROWS_PER_ROUND if rows else 1]:
            rows[step] = steps.row(step, budget_bytes)
            alone, units, converged = row_bound(rows[step], deadline)
            best = max(best, alone)
        if best == math.inf:
            break
        if len(rows) == 1:
            again = np.zeros(len(flow.units))
            again[list(units)] = list(units.values())
        else:
            backends = backends or Backends.of(backend)
            answer = backends.ask(partial(joint_bound, tuple(rows.values()), seconds, deadline))
            converged = answer is not None
            if answer is not None:
                best, again = max(best, answer[0]), answer[1]
    return Bound(seconds=best, converged=converged, steps=tuple(rows))


def row_bound(row: Row, deadline: float) -> tuple[float, dict[int, float], bool]:
    """Bound of one row, how much of which units it runs again, and whether it is the optimum.

    The optimum mixes two choices, one above the room and one within it, that some price makes equally good. Each
    price on the way there gives a bound.
    """
    left = row.point([])
    if left.held_bytes <= row.room_bytes:
        return 0.0, {}, True
    right = row.cheapest(1 + sum(row.ticks), 1)
    if right.held_bytes > row.room_bytes:
        return math.inf, {}, True
    best = 0.0
    while True:
        byte_price, tick_price = right.ticks - left.ticks, left.held_bytes - right.held_bytes
        middle = row.cheapest(byte_price, tick_price)
        priced = tick_price * middle.ticks + byte_price * (middle.held_bytes - row.room_bytes)
        best = max(best, priced / tick_price / TICKS)
        if priced >= tick_price * left.ticks + byte_price * (left.held_bytes - row.room_bytes):
            share = (row.room_bytes - right.held_bytes) / tick_price
            again = dict.fromkeys(left.units, share)
            return best, again | {u: again.get(u, 0.0) + 1.0 - share for u in right.units}, True
        if time.perf_counter() > deadline:
            return best, {}, False
        if middle.held_bytes > row.room_bytes:
            left = middle
        else:
            right = middle


def _broken(steps: Steps, again: Floats, budget_bytes: int, known: Collection[int]) -> list[int]:
    """Steps whose level is a local maximum above the budget, highest first, without those that have a row."""
    levels = steps.levels(again)
    before, after = np.append(-np.inf, levels[:-1]), np.append(levels[1:], -np.inf)
    limit_bytes = budget_bytes * (1.0 + 1e-7) + 0.5
    found = np.flatnonzero((levels > limit_bytes) & (levels >= before) & (levels > after))
    order = found[np.argsort(-levels[found], kind="stable")].tolist()
    return [step for step in order if step not in known]
