"""The tables of the programme in `rotor`: one row of least seconds, by free slots, for each stretch of stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from .formulation import Floats
from .ledger import Ints
from .stages import ChainStage, ChainStep

__all__ = ["MOST_SLOTS", "Table"]

MOST_SLOTS = 500
"""Parts in which bytes are counted where the budget has more."""


@dataclass(frozen=True)
class Table:
    """Least seconds from the input of stage s to its gradient, through stage t, by free slots.

    The input of stage s stands beside the free slots, the gradient of stage t's output in them.

    Attributes:
        stages: the chain.
        budget_bytes: highest level.
        input_bytes: size of the chain's input.
        nested: whether what is run again may be cut anew.
    """

    stages: tuple[ChainStage, ...]
    budget_bytes: int
    input_bytes: int
    nested: bool

    @cached_property
    def unit_bytes(self) -> int:
        """Bytes of a slot."""
        return max(1, -(-self.budget_bytes // MOST_SLOTS))

    @cached_property
    def slots_of_budget(self) -> int:
        """Slots that fit."""
        return max(self.budget_bytes // self.unit_bytes, 0)

    @cached_property
    def input(self) -> tuple[int, ...]:
        """Slots of the input of each stage, and of the last output."""
        sizes = [self.input_bytes, *(stage.output_bytes for stage in self.stages)]
        return tuple(self.slots(n_bytes) for n_bytes in sizes)

    @cached_property
    def runs(self) -> tuple[float, ...]:
        """Seconds of the forwards of all stages before each."""
        return (0.0, *accumulate(stage.options[0].forward_seconds for stage in self.stages))

    @cached_property
    def every(self) -> dict[tuple[int, int], Floats]:
        """Stages first to last: the best of keeping the first, and of restarting from it."""
        table: dict[tuple[int, int], Floats] = {}
        n = len(self.stages)
        for length in range(n):
            for s in range(n - length):
                t = s + length
                best = self.kept(s, t, table)
                for j in range(s + 1, t + 1):
                    np.minimum(best, self.restarted(s, j, t, table), out=best)
                table[s, t] = best
        return table

    @cached_property
    def once(self) -> dict[tuple[int, int], Floats]:
        """Stages first to last, each kept; what is run again in flat schedules."""
        table: dict[tuple[int, int], Floats] = {}
        n = len(self.stages)
        for length in range(n):
            for s in range(n - length):
                table[s, s + length] = self.kept(s, s + length, table)
        return table

    def slots(self, n_bytes: int) -> int:
        """Bytes in slots, rounded up."""
        return -(-n_bytes // self.unit_bytes)

    def seconds(self, s: int, t: int, room: int) -> float:
        """Least seconds with so many free slots; infinite where nothing fits."""
        return float(self.every[s, t][room]) if room >= 0 else math.inf

    def kept(self, s: int, t: int, table: dict[tuple[int, int], Floats]) -> Floats:
        """Stage s is kept in its best way, and the rest follows on what is left."""
        best: Floats = self.kept_each(s, t, table).min(axis=0)
        return best

    def kept_each(self, s: int, t: int, table: dict[tuple[int, int], Floats]) -> Floats:
        """The same for each way to keep stage s."""
        own, saved, forward = self.ways[s]
        needed = forward + self.input[t + 1]
        if t > s:
            needed = np.maximum(needed, self.passing(s, t))
        room = np.arange(self.slots_of_budget + 1)
        seconds: Floats = np.where(room < needed, np.inf, own)
        if t > s:
            left = room - saved
            seconds += np.where(left < 0, np.inf, table[s + 1, t][np.maximum(left, 0)])
        return seconds

    @cached_property
    def ways(self) -> tuple[tuple[Floats, Ints, Ints], ...]:
        """Per stage and way: seconds by free slots where backward fits, slots saved, slots that forward needs."""
        room = np.arange(self.slots_of_budget + 1)
        ways = []
        for s, stage in enumerate(self.stages):
            saved = np.array([[self.slots(option.saved_bytes)] for option in stage.options])
            forward = np.array([[self.slots(option.forward_transient_bytes)] for option in stage.options])
            backward = np.array([[self.slots(option.backward_transient_bytes)] for option in stage.options])
            both = np.array([[float(option.forward_seconds + option.backward_seconds)] for option in stage.options])
            fits = room >= self.input[s] + self.input[s + 1] + saved + backward
            ways.append((np.where(fits, both, np.inf), saved, saved + forward))
        return tuple(ways)

    def restarted(self, s: int, j: int, t: int, table: dict[tuple[int, int], Floats]) -> Floats:
        """The input of stage s is held, stages s to j − 1 run without saving, and run again after the rest."""
        again = self.every_or_once(s, j - 1, table)
        seconds = again + (self.runs[j] - self.runs[s])
        held = self.input[j]
        seconds[held:] += table[j, t][: max(len(seconds) - held, 0)]
        seconds[: max(held, self.passing(s, t))] = np.inf
        return seconds

    def every_or_once(self, s: int, t: int, table: dict[tuple[int, int], Floats]) -> Floats:
        """What stages cost that are run again."""
        return table[s, t] if self.nested else self.once[s, t]

    def passing(self, s: int, t: int) -> int:
        """Slots needed to run stages s to t − 1 without saving, beside the gradient of the last output."""
        return self.input[t + 1] + max(self.input[s + 1] + self.forward_transient[s], self.widest[s].get(t, 0))

    @cached_property
    def forward_transient(self) -> tuple[int, ...]:
        """Slots beside input and output while a stage runs without saving."""
        return tuple(self.slots(stage.options[0].forward_transient_bytes) for stage in self.stages)

    @cached_property
    def widest(self) -> tuple[dict[int, int], ...]:
        """Most slots that a stage from s + 1 to t − 1 needs to run without saving, by s and t."""
        widest: list[dict[int, int]] = []
        for s in range(len(self.stages)):
            most: dict[int, int] = {}
            for j in range(s + 1, len(self.stages)):
                most[j + 1] = max(most.get(j, 0), self.input[j] + self.input[j + 1] + self.forward_transient[j])
            widest.append(most)
        return tuple(widest)

    def steps(self, s: int, t: int, room: int, *, once: bool = False) -> list[ChainStep]:
        """Operations of the best schedule."""
        table = self.once if once else self.every
        best = table[s, t][room]
        for k, seconds in enumerate(self.kept_each(s, t, table)[:, room]):
            if seconds == best:
                option = self.stages[s].options[k]
                middle = self.steps(s + 1, t, room - self.slots(option.saved_bytes), once=once) if t > s else []
                return [
                    ChainStep(kind="keep", stage=s, option=k),
                    *middle,
                    ChainStep(kind="backward", stage=s, option=k),
                ]
        for j in range(s + 1, t + 1):
            if self.restarted(s, j, t, table)[room] == best:
                return [
                    ChainStep(kind="hold", stage=s),
                    *(ChainStep(kind="pass", stage=i) for i in range(s + 1, j)),
                    *self.steps(j, t, room - self.input[j]),
                    *self.steps(s, j - 1, room, once=not self.nested),
                ]
        raise AssertionError("a finite entry of the table comes from one of its cases")
