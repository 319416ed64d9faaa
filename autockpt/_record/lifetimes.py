"""From the tape of a step whose saves were spilled to the lifetimes of the plain step, on the clock of ticks.

Nothing but forward itself keeps a storage alive in a spilled step, so its free is its natural death. What the plain
step would have held, and until when, follows from the markers of saves. Copies that backward read are no storages of
the plain step: they are the storage that they are copies of.

    spilled    alloc 7 · pack 7 · free 7 · ...            · alloc 9 · unpack 9 · free 9 · release
    natural    alloc 1 · pack 1 · free 1 · ...                      · unpack 1          · release
    plain      alloc 1 · pack 1          · ...                      · unpack 1          · release · free 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from .._watch.marks import Mark, MarkKind, SeenStep


@dataclass(frozen=True, slots=True)
class Placed:
    """A marker at its tick, with the storages that its keys stood for there; those older than the step are negative."""

    mark: Mark
    tick: int
    storages: tuple[int, ...]


@dataclass(slots=True)
class Lifetimes:
    """Every storage born in a step and every marker, on the clock of ticks.

    Attributes:
        bytes: size of each storage.
        birth: tick of its allocation.
        natural: tick from which only saves keep it alive.
        death: tick from which it is gone in the plain step; `ticks` if that ends first.
        reads: of each saved tensor that was brought back for backward: its save, then, and until when that copy stood.
        marks: the markers in order.
        older: keys of the storages that are older than the step, by their negative number.
        ticks: length of the clock.
        workspace_bytes: what operators allocated for themselves and kept beyond the step, as cuBLAS does in the first
            one: the next step finds it there.
    """

    bytes: list[int] = field(default_factory=list)
    birth: list[int] = field(default_factory=list)
    natural: list[int] = field(default_factory=list)
    death: list[int] = field(default_factory=list)
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    marks: list[Placed] = field(default_factory=list)
    older: dict[int, int] = field(default_factory=dict)
    ticks: int = 0
    workspace_bytes: int = 0

    def of_kind(self, *kinds: MarkKind) -> Iterator[Placed]:
        """The markers of some kinds, in order."""
        return (each for each in self.marks if each.mark.kind in kinds)

    def late_forwards(self) -> tuple[tuple[int, int], ...]:
        """From which tick until which forwards ran after a backward: up to the next one, or to the end of the last."""
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
    """Put a run's events on the clock of ticks: allocations and markers count, frees fall between them. O(events)."""
    copies, workspaces, lost = _not_of_the_step(run)
    reading = _Reading()
    for place, event in enumerate(run.events):
        if event.kind == "mark":
            reading.mark(run.marks[event.key])
        elif place in workspaces:
            reading.found.workspace_bytes += event.bytes
        elif event.kind == "free":
            reading.free(event.key)
        elif place in copies:
            reading.live.pop(event.key, None)
        elif place in lost:
            reading.lose(event.bytes)
        else:
            reading.allocate(event.key, event.bytes)
    return reading.over()


def places(run: SeenStep) -> list[int]:
    """Return where among a run's events each of the storages was allocated that `lifetimes` finds, in its order."""
    copies, workspaces, _ = _not_of_the_step(run)
    allocated = (place for place, event in enumerate(run.events) if event.kind == "alloc")
    return [place for place in allocated if place not in copies and place not in workspaces]


class _Reading:
    """The events of a run, one after the other, as far as they have been read.

    Attributes:
        found: what is known by now.
        live: by address, a storage, and whether that is only a copy of it.
    """

    def __init__(self) -> None:
        self.found = Lifetimes()
        self.live: dict[int, tuple[int, bool]] = {}
        self._saved: list[int | None] = []
        self._holders: Counter[int | None] = Counter()  # of each storage: itself, its saves, its copies
        self._natural: dict[int, int] = {}
        self._death: dict[int, int] = {}
        self._read: dict[
            int, tuple[int, int]
        ] = {}  # by address of a copy, the save that it is of, and when it was made

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
            # This gradient is added to one that existed before the step, and is gone at once.
            self._holders[storages[0]] = -1
            self._natural[storages[0]] = self._death[storages[0]] = found.ticks

    def allocate(self, key: int, size: int) -> None:
        number, is_copy = self.live.get(key, (-1, True))
        if not is_copy and number >= 0:  # it has gone, and another thread had it last
            self._natural.setdefault(number, self.found.ticks)
            self._let_go(number)
        self.live[key] = len(self.found.bytes), False
        self._holders[len(self.found.bytes)] += 1
        self._born(size)

    def lose(self, size: int) -> None:
        """Take what is allocated to go at once: nobody sees when it does."""
        number = len(self.found.bytes)
        self._natural[number] = self._death[number] = self.found.ticks + 1
        self._born(size)

    def free(self, key: int) -> None:
        number, is_copy = self.live.pop(key, (-1, True))
        if not is_copy:
            self._natural.setdefault(number, self.found.ticks)
        elif key in self._read:
            self.found.reads.append((*self._read.pop(key), self.found.ticks))
        self._let_go(number)

    def over(self) -> Lifetimes:
        """Return what was found, as the step is over."""
        found = self.found
        found.reads += ((*each, found.ticks) for each in self._read.values())
        found.death = [self._death.get(number, found.ticks) for number in range(len(found.bytes))]
        found.natural = [min(self._natural.get(number, last), last) for number, last in enumerate(found.death)]
        return found

    def _born(self, size: int) -> None:
        self.found.bytes.append(size)
        self.found.birth.append(self.found.ticks)
        self.found.ticks += 1

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


def _not_of_the_step(run: SeenStep) -> tuple[set[int], set[int], set[int]]:
    """Places of allocations that a plain step does not make, and of those that the next step finds there.

    Returns:
        What the recorder allocates, copies of saved tensors for one; what is never freed and nothing in Python saw; and
        of that what threads of collectives have freed, which no tape sees: it is taken to go at once.
    """
    copies: set[int] = set()
    lost: set[int] = set()
    unseen: dict[int, int] = {}  # by address, the place of its allocation
    live: dict[int, int] = {}
    aside = False
    for place, event in enumerate(run.events):
        if event.kind == "alloc":
            lost.update([unseen[event.key]] if event.key in unseen else [])
            live[event.key] = unseen[event.key] = place
            copies.update([place] if aside else [])
        elif event.kind == "free":
            unseen.pop(event.key, None)
        else:
            mark = run.marks[event.key]
            aside = mark.kind == "aside" or (aside and mark.kind in ("release", "ready", "held", "gathered"))
            if mark.kind == "unpack":
                copies.update(live[key] for key in mark.keys if key in live)
            for key in mark.keys:
                unseen.pop(key, None)
    return (copies, set(), lost | {*unseen.values()}) if run.threads else (copies, {*unseen.values()}, lost)
