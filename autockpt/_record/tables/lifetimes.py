"""Derives the storage lifetimes of the plain step from the tape of a step whose saved tensors were spilled.

In a spilled step only forward itself keeps a storage alive. So the tick at which it is freed is its *natural* end: from
then on the plain step keeps it only for backward. How long it does so follows from the markers of the saves. Backward
reads copies, which do not exist in the plain step: each one counts as its original storage. The clock counts ticks: one
for each allocation and each marker.

    spilled    alloc 7 · pack 7 · free 7 · ...            · alloc 9 · unpack 9 · free 9 · release
    natural    alloc 1 · pack 1 · free 1 · ...                      · unpack 1          · release
    plain      alloc 1 · pack 1          · ...                      · unpack 1          · release · free 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..watch.marks import Mark, MarkKind, SeenStep


@dataclass(frozen=True, slots=True)
class Placed:
    """A marker, its tick, and the storages that its keys meant at that tick.

    Storages from before the step have negative numbers.
    """

    mark: Mark
    tick: int
    storages: tuple[int, ...]


@dataclass(slots=True)
class Lifetimes:
    """Every storage allocated in a step and every marker, on the clock of ticks.

    Attributes:
        bytes: size of each storage.
        birth: tick of its allocation.
        natural: tick from which nothing but saves keeps it alive.
        death: tick from which it is free in the plain step; `ticks` if it outlives the step.
        reads: for each copy of a saved tensor that backward read: number of the save, and the ticks at which the copy
            was made and freed.
        marks: the markers in order.
        older: keys of the storages from before the step, by their negative number.
        ticks: length of the clock.
    """

    bytes: list[int] = field(default_factory=list)
    birth: list[int] = field(default_factory=list)
    natural: list[int] = field(default_factory=list)
    death: list[int] = field(default_factory=list)
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    marks: list[Placed] = field(default_factory=list)
    older: dict[int, int] = field(default_factory=dict)
    ticks: int = 0

    def of_kind(self, *kinds: MarkKind) -> Iterator[Placed]:
        """The markers of some kinds, in order."""
        return (each for each in self.marks if each.mark.kind in kinds)

    def late_forwards(self) -> tuple[tuple[int, int], ...]:
        """Return the spans of ticks of the forwards after a backward.

        Each begins with the first call after that backward, and ends with the next backward or after the last exit.
        """
        found: list[tuple[int, int]] = []
        began, ended, over = -1, -1, False
        for each in self.of_kind("enter", "exit", "forward_end", "backward_again"):
            if each.mark.kind == "enter":
                began = each.tick if over and began < 0 else began
            elif each.mark.kind == "exit":
                ended = each.tick + 1
            else:
                found += [(began, each.tick)] if began >= 0 else []
                began, over = -1, True
        return (*found, (began, ended)) if began >= 0 else tuple(found)


def lifetimes(run: SeenStep) -> Lifetimes:
    """Put a run's events on the clock: allocations and markers take a tick each, frees take none. O(events)."""
    reading = _Reading()
    for event in run.events:
        if event.kind == "mark":
            reading.mark(run.marks[event.key])
        elif event.kind == "free":
            reading.free(event.key)
        else:
            reading.allocate(event.key, event.bytes)
    return reading.over()


class _Reading:
    """Reads the events of a run one after the other.

    Attributes:
        found: the lifetimes so far.
        live: for each live address, its storage, and whether this memory is only a copy of that storage.
    """

    def __init__(self) -> None:
        self.found = Lifetimes()
        self.live: dict[int, tuple[int, bool]] = {}
        self._saved: list[int | None] = []
        self._holders: Counter[int | None] = Counter()  # what keeps each storage: forward (1), its saves, its copies
        self._natural: dict[int, int] = {}
        self._death: dict[int, int] = {}
        self._read: dict[int, tuple[int, int]] = {}  # by address of a copy: its save, and the tick at which it was made

    def mark(self, mark: Mark) -> None:
        found = self.found
        if mark.kind == "aside":
            return
        if mark.kind == "unpack" and (original := self._saved[mark.index]) is not None:
            self.live.update((key, (original, True)) for key in mark.keys)
            self._read.update((key, (mark.index, found.ticks)) for key in mark.keys)
            self._holders[original] += len(mark.keys)
        storages = tuple(self._at(key) for key in mark.keys if key)
        found.marks.append(Placed(mark, found.ticks, storages))
        found.ticks += 1
        if mark.kind == "pack":
            self._saved.append(storages[0] if storages else None)
            self._holders[self._saved[-1]] += 1
        elif mark.kind == "release":
            self._let_go(self._saved[mark.index])
        elif mark.kind == "ready" and storages and storages[0] >= 0:
            # This gradient is added to one from before the step, and freed at once.
            self._holders[storages[0]] = -1
            self._natural[storages[0]] = self._death[storages[0]] = found.ticks

    def allocate(self, key: int, size: int) -> None:
        number, is_copy = self.live.get(key, (-1, True))
        if not is_copy and number >= 0:  # the address is used again, so a thread that no tape sees has freed it
            self._natural.setdefault(number, self.found.ticks)
            self._let_go(number)
        self.live[key] = len(self.found.bytes), False
        self._holders[len(self.found.bytes)] += 1
        self.found.bytes.append(size)
        self.found.birth.append(self.found.ticks)
        self.found.ticks += 1

    def free(self, key: int) -> None:
        number, is_copy = self.live.pop(key, (-1, True))
        if not is_copy:
            self._natural.setdefault(number, self.found.ticks)
        elif key in self._read:
            self.found.reads.append((*self._read.pop(key), self.found.ticks))
        self._let_go(number)

    def over(self) -> Lifetimes:
        """Return the lifetimes, once all events are read."""
        found = self.found
        found.reads += ((*each, found.ticks) for each in self._read.values())
        found.death = [self._death.get(number, found.ticks) for number in range(len(found.bytes))]
        found.natural = [min(self._natural.get(number, last), last) for number, last in enumerate(found.death)]
        return found

    def _at(self, key: int) -> int:
        if key not in self.live:
            number = -len(self.found.older) - 1
            self.live[key] = number, False
            self.found.older[number] = key
        return self.live[key][0]

    def _let_go(self, number: int | None) -> None:
        self._holders[number] -= 1
        if number is not None and number >= 0 and not self._holders[number]:
            self._death[number] = self.found.ticks
