"""When a segment is replayed, and how long the replayed tensors live, if backward passes keep their graph.

    backward 1, which keeps its graph          backward 2
    ├── replay ── a, b read and gone ──────────┼── replay ── a, b ─── released
                  c not read: it waits ────────┼──────────── c read ─ released

In a pass that keeps its graph (``retain_graph``), a replayed tensor is freed once the node that reads it is done; the
next pass replays again. If nodes that the pass itself makes hold it (``create_graph``), it lives as long as they do. A
tensor that the pass does not read is kept for the next pass. In any other pass, a tensor lives until autograd releases
it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from ..._data.profile import Profile


class Passes:
    """The backward passes of a step.

    Args:
        profile: the profile of the step.

    Attributes:
        keeping: by pass, whether it kept its graph.
        of_step_keeping: the same, without passes that run inside other passes.
    """

    def __init__(self, profile: Profile) -> None:
        self._begins, self._saves, self._ticks = profile.backward_ticks, profile.saves, profile.ticks
        self._again: dict[int, list[int]] = {}
        for save, tick in profile.rereads:
            self._again.setdefault(save, []).append(tick)
        released: dict[int, int] = {}  # by tensor; what else holds it longer is part of the plain step
        for tensor, tick in zip(self._saves.tensor, self._saves.release, strict=True):
            released[tensor] = max(released.get(tensor, 0), tick)
        self._lasts: dict[tuple[int, int], int] = {}
        for save, tick, until in profile.kept_reads:
            key, tensor = (save, self.at(tick)), self._saves.tensor[save]
            self._lasts[key] = max(self._lasts.get(key, 0), min(until, released[tensor]))
        self._reads = sorted((tick, i) for i in range(len(self._saves)) for tick in self.reads(i))
        self.keeping = [self._keeps_graph(number) for number in range(len(self._begins) + 1)]
        of_step = (True, *(tick not in profile.nested_ticks for tick in self._begins))
        self.of_step_keeping = [keeps for keeps, own in zip(self.keeping, of_step, strict=True) if own]

    def fills(self, slots: Sequence[int]) -> dict[int, dict[int, int]]:
        """Return, by tick of each replay of a segment, the saves that it fills, and at which tick each is freed.

        The replays are in order. There is none if backward reads none of the saves. O(saves × backward passes).

        Args:
            slots: the saves that a replay of the segment can fill.
        """
        saves = self._saves
        if not any(self.keeping):  # as nearly always
            tick = min((saves.unpack[i] for i in slots), default=self._ticks)
            return {tick: {i: saves.release[i] for i in slots if saves.release[i] > tick}} if tick < self._ticks else {}
        reads = {i: self.reads(i) for i in slots}
        empty, found = set(reads), dict[int, dict[int, int]]()
        for number, keeps in enumerate(self.keeping):
            read = {i: tick for i, own in reads.items() for tick in own if self.at(tick) == number}
            tick = min((tick for i, tick in read.items() if i in empty), default=-1)
            if tick >= 0:
                filled = [i for i in reads if i in empty and saves.release[i] > tick]
                found[tick] = {i: self._until(i, tick) for i in filled}
                empty.difference_update(filled)
            empty.update(read if keeps else ())
        return found

    def held_until(self, slots: Sequence[int], last: int) -> int:
        """Return the tick until which a segment holds what its replays begin with.

        That is until the last replay is over. If its pass keeps the graph, a later pass may read again what that pass
        has freed, so it is until autograd has released all saves.

        Args:
            slots: the saves that a replay of the segment can fill.
            last: tick at which the last replay begins.
        """
        over = last + 1
        return max((over, *(self._saves.release[i] for i in slots))) if self.keeping[self.at(last)] else over

    def _until(self, save: int, filled: int) -> int:
        """Return the tick at which a save is freed that a replay fills at tick `filled`.

        If a pass that keeps its graph reads it, that is after the read, or later, when the nodes that the pass made
        with it are gone. If no such pass reads it, autograd releases it.
        """
        read = min((r for r in self.reads(save) if r >= filled and self.keeping[self.at(r)]), default=-1)
        if read < 0:
            return self._saves.release[save]
        return max(self.read_over(read, save), self._lasts.get((save, self.at(read)), 0))

    def reads(self, save: int) -> list[int]:
        """Return the tick of each pass's first read of a save. Passes that do not read it have none."""
        return [tick for tick in (self._saves.unpack[save], *self._again.get(save, ())) if tick < self._ticks]

    def at(self, tick: int) -> int:
        """Return the number of the pass that runs at a tick."""
        return bisect.bisect_right(self._begins, tick)

    def read_over(self, tick: int, save: int) -> int:
        """Return the tick by which the node that read a save is done: the next node reads, or the pass ends."""
        ends = (*self._begins, self._ticks)[self.at(tick)]
        op = self._saves.op[save]
        for place in range(bisect.bisect_right(self._reads, (tick, save)), len(self._reads)):
            later, other = self._reads[place]
            if later >= ends or self._saves.op[other] != op or op < 0:
                return min(later, ends)
        return ends

    def _keeps_graph(self, number: int) -> bool:
        """Whether a pass kept its graph. Then it released nothing before its last read; otherwise every node releases.

        If a pass reads the saves of one node only, any release comes after its last read. Such a pass kept its graph if
        the release comes after the pass.
        """
        read = [(tick, i) for tick, i in self._reads if self.at(tick) == number]
        if not read:
            return False
        released = min(self._saves.release[i] for _, i in read)
        ops = {self._saves.op[i] for _, i in read}
        if len(ops) == 1 and -1 not in ops and released <= (*self._begins, self._ticks)[number]:
            return False
        return released > read[-1][0]
