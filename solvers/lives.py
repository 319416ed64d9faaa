"""When the ops of a model run, when backward reads their tensors, and what may then stand in each step; see `bound`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from .columns import Floats
from .dataflow import Dataflow
from .errors import InvalidProblem


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
class Row:
    """What must fit into one step.

    Attributes:
        room_bytes: most bytes that may be held.
        needs: (item, maker, reader): the item is held, or the maker runs again, as far as the reader runs again.
            Without a reader it is backward that reads it; without a maker nothing makes it again. -1 stands for none.
    """

    room_bytes: int
    needs: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a model, and what may be held in each.

    `until` and `unit_until` are per item and unit the first step after which nothing can want it, or what it makes;
    `readers` are per item the units that read its last version.
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
        readers: list[list[int]] = [[] for _ in flow.items]
        for u in range(len(flow.units) - 1, -1, -1):
            unit_until[u] = max((until[t] for t in flow.units[u].makes), default=0)
            for t in flow.units[u].reads:
                until[t] = max(until[t], unit_until[u])
                # Where several units write one item in place, only who reads the last version counts.
                if not flow.makers[t] or flow.makers[t][-1] < u:
                    readers[t].append(u)
        last = tuple(tuple(each) for each in readers)
        return cls(flow=flow, lives=lives, until=tuple(until), unit_until=tuple(unit_until), readers=last)

    def row(self, step: int, budget_bytes: int) -> Row:
        """What fits into the budget in `step`."""
        flow, lives = self.flow, self.lives
        ran = [run < step < until for run, until in zip(lives.run_step, self.unit_until, strict=True)]
        room_bytes, needs = budget_bytes - lives.base_bytes[step], []
        for t, item in enumerate(flow.items):
            reads = lives.read_steps[t]
            if item.free or lives.free_step[t] > step or (step >= self.until[t] and step not in reads):
                continue
            if step in reads:
                room_bytes -= item.bytes
                continue
            wanted = [-1] if reads and reads[-1] > step else [v for v in self.readers[t] if ran[v]]
            makers = flow.makers[t] if flow.makers[t] and all(ran[u] for u in flow.makers[t]) else (-1,)
            needs += [(t, u, v) for u in makers for v in wanted]
        return Row(room_bytes=room_bytes, needs=tuple(needs))

    def levels(self, again: Floats) -> Floats:
        """Level of every step, or more, if so much of each unit ran again after it."""
        change = np.zeros(len(self.lives.base_bytes) + 1)

        def stands(start: int, until: int, n_bytes: float) -> None:
            if start < until:
                change[start] += n_bytes
                change[until] -= n_bytes

        for t, item in enumerate(self.flow.items):
            if item.free:
                continue
            made = min((again[u] for u in self.flow.makers[t]), default=0.0)
            reads, free_step = self.lives.read_steps[t], self.lives.free_step[t]
            last = reads[-1] if reads else -1
            for step in reads:
                if step >= free_step:
                    stands(step, step + 1, item.bytes * made)
            stands(free_step, last + 1, item.bytes * (1.0 - made))
            wanted = max((again[u] for u in self.readers[t]), default=0.0) - made
            if wanted > 0.0:
                stands(max(free_step, last + 1), self.until[t] + 1, item.bytes * wanted)
        levels: Floats = np.array(self.lives.base_bytes) + np.cumsum(change[:-1])
        return levels

    def broken(self, again: Floats, budget_bytes: int, known: Collection[int]) -> list[int]:
        """Steps whose level is a local maximum above the budget, highest first, without those that have a row."""
        levels = self.levels(again)
        before, after = np.append(-np.inf, levels[:-1]), np.append(levels[1:], -np.inf)
        limit_bytes = budget_bytes * (1.0 + 1e-7) + 0.5
        found = np.flatnonzero((levels > limit_bytes) & (levels >= before) & (levels > after))
        order = found[np.argsort(-levels[found], kind="stable")].tolist()
        return [step for step in order if step not in known]


def _check(flow: Dataflow, lives: Lives) -> None:
    n_steps, n_items = len(lives.base_bytes), len(flow.items)
    ran, freed, read = len(lives.run_step), len(lives.free_step), len(lives.read_steps)
    if ran != len(flow.units):
        raise InvalidProblem(f"{ran} run steps for {len(flow.units)} units")
    if not freed == read == n_items:
        raise InvalidProblem(f"{freed} free steps and {read} rows of read steps for {n_items} items")
    if not all(0 <= step < n_steps for steps in (lives.run_step, *lives.read_steps) for step in steps):
        raise InvalidProblem(f"a unit runs, or backward reads, outside the {n_steps} steps")
    if not all(0 <= step <= n_steps for step in lives.free_step):
        raise InvalidProblem(f"an item is freed outside the {n_steps} steps")
