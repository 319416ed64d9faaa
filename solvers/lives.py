"""When the ops of a model run, when backward reads their tensors, and what may then stand in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dataflow import Dataflow
from .errors import InvalidProblem
from .formulation import Floats
from .row import Row, make_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """When what stands, over the steps of one training step.

    Attributes:
        base_bytes: per step, what stands there in every schedule: parameters, gradients so far, what the caller's
            own references keep, temporaries of the step itself.
        run_step: per unit, the step in which it first runs.
        free_step: per item, the first step in which it would be dead if backward did not need it. Before that it is
            part of the base. For an item from outside that backward alone holds: the first step.
        read_steps: per item, the steps in which backward reads it, ascending; empty where it is not saved.
    """

    base_bytes: tuple[int, ...]
    run_step: tuple[int, ...]
    free_step: tuple[int, ...]
    read_steps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a model, and what may be held in each.

    Attributes:
        flow: the ops.
        lives: when what stands.
        until: per item, the first step after which nothing can want it.
        unit_until: per unit, the first step after which nothing can want what it makes.
        readers: per item, the units that read it.
    """

    flow: Dataflow
    lives: Lives
    until: tuple[int, ...]
    unit_until: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, flow: Dataflow, lives: Lives) -> Steps:
        """Check the data, and find how long things can be wanted: by backward, or to make what is wanted."""
        _check(flow, lives)
        until = [steps[-1] if steps else 0 for steps in lives.read_steps]
        unit_until = [0] * len(flow.units)
        for u in range(len(flow.units) - 1, -1, -1):
            unit_until[u] = max((until[t] for t in flow.units[u].makes), default=0)
            for t in flow.units[u].reads:
                until[t] = max(until[t], unit_until[u])
        readers: list[list[int]] = [[] for _ in flow.items]
        for u, unit in enumerate(flow.units):
            for t in unit.reads:
                readers[t].append(u)
        return cls(
            flow=flow,
            lives=lives,
            until=tuple(until),
            unit_until=tuple(unit_until),
            readers=tuple(tuple(each) for each in readers),
        )

    def row(self, step: int, budget_bytes: int) -> Row:
        """What fits into the budget in `step`."""
        flow, lives = self.flow, self.lives
        read_now_bytes, needed, others = 0, set(), set()
        for t, item in enumerate(flow.items):
            if item.free or lives.free_step[t] > step:
                continue
            reads = lives.read_steps[t]
            if step in reads:
                read_now_bytes += item.bytes
            elif reads and reads[-1] > step:
                needed.add(t)
            elif self.until[t] > step:
                others.add(t)
        return make_row(
            flow,
            room_bytes=budget_bytes - lives.base_bytes[step] - read_now_bytes,
            needed=needed,
            others=others,
            ran=[run < step < until for run, until in zip(lives.run_step, self.unit_until, strict=True)],
        )

    def levels(self, again: Floats) -> Floats:
        """Level of every step, or more, if so much of each unit ran again after it."""
        n_steps = len(self.lives.base_bytes)
        change = np.zeros(n_steps + 1)
        for t, item in enumerate(self.flow.items):
            if item.free:
                continue
            made = min((again[u] for u in self.flow.makers[t]), default=0.0)
            reads, free_step = self.lives.read_steps[t], self.lives.free_step[t]
            last = reads[-1] if reads else 0
            for step in reads:
                if step >= free_step:
                    change[step] += item.bytes * made
                    change[step + 1] -= item.bytes * made
            if last >= free_step:
                change[free_step] += item.bytes * (1.0 - made)
                change[last + 1] -= item.bytes * (1.0 - made)
            first = max(free_step, last + 1)
            wanted = max((again[u] for u in self.readers[t]), default=0.0) - made
            if wanted > 0.0 and self.until[t] >= first:
                change[first] += item.bytes * wanted
                change[self.until[t] + 1] -= item.bytes * wanted
        levels: Floats = np.array(self.lives.base_bytes) + np.cumsum(change[:-1])
        return levels


def _check(flow: Dataflow, lives: Lives) -> None:
    n_steps = len(lives.base_bytes)
    if len(lives.run_step) != len(flow.units):
        raise InvalidProblem(f"{len(lives.run_step)} run steps for {len(flow.units)} units")
    if not len(lives.free_step) == len(lives.read_steps) == len(flow.items):
        raise InvalidProblem(
            f"{len(lives.free_step)} free steps and {len(lives.read_steps)} rows of read steps "
            f"for {len(flow.items)} items"
        )
    reads = [step for each in lives.read_steps for step in each]
    if not all(0 <= step < n_steps for step in (*lives.run_step, *reads)):
        raise InvalidProblem(f"a unit runs, or backward reads, outside the {n_steps} steps")
    if not all(0 <= step <= n_steps for step in lives.free_step):
        raise InvalidProblem(f"an item is freed outside the {n_steps} steps")
