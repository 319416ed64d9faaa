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
from collections.abc import Iterable
from dataclasses import dataclass, field

from .marks import Mark, MarkKind, Run


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
    marks: list[Placed] = field(default_factory=list)
    older: dict[int, int] = field(default_factory=dict)
    ticks: int = 0
    workspace_bytes: int = 0

    def of_kind(self, *kinds: MarkKind) -> Iterable[Placed]:
        """The markers of some kinds, in order."""
        return (each for each in self.marks if each.mark.kind in kinds)

    def first(self, kind: MarkKind) -> Placed:
        """The first marker of a kind."""
        return next(iter(self.of_kind(kind)))


def lifetimes(run: Run) -> Lifetimes:
    """Put a run's events on the clock of ticks: allocations and markers count, frees fall between them.

    O(events).
    """
    names, copied, placed, older = _name_storages(run)
    workspaces = _workspaces(run, names, placed)
    found = Lifetimes(older=older)
    numbers: dict[int, int] = {}  # of storages, by name
    saved: list[int] = []
    holders: Counter[int] = Counter()  # of each storage: itself, its saves, its copies

    def let_go(number: int) -> None:
        holders[number] -= 1
        if number >= 0 and not holders[number]:
            found.death[number] = found.ticks

    for event, name in zip(run.events, names, strict=True):
        if event.kind == "mark":
            mark, named = placed[event.key]
            if mark.kind == "aside":
                continue
            # A copy may have been met before a node read it: in the graph of a gradient that forward took.
            originals = filter(None, (copied.get(each, each) for each in named))
            storages = tuple(numbers[each] if each > 0 else each for each in originals)
            found.marks.append(Placed(mark, found.ticks, storages))
            found.ticks += 1
            if mark.kind == "pack":
                saved.append(storages[0] if storages else -1)
                holders[saved[-1]] += 1
            elif mark.kind == "release":
                let_go(saved[mark.index])
            elif mark.kind == "ready" and storages and storages[0] >= 0:
                # This gradient is added to one that existed before the step, and is gone at once.
                holders[storages[0]] = -1
                found.natural[storages[0]] = found.death[storages[0]] = found.ticks
            continue
        if name in workspaces:
            found.workspace_bytes += event.bytes
            continue
        is_copy = name in copied
        number = numbers.get(copied.get(name, name), -1)
        if event.kind == "alloc":
            if not is_copy:
                number = numbers[name] = len(found.bytes)
                found.bytes.append(event.bytes)
                found.birth.append(found.ticks)
                found.natural.append(-1)
                found.death.append(-1)
                found.ticks += 1
            holders[number] += 1
        elif name:
            if not is_copy and found.natural[number] < 0:
                found.natural[number] = found.ticks
            let_go(number)
    for deaths in (found.natural, found.death):
        deaths[:] = [tick if tick >= 0 else found.ticks for tick in deaths]
    found.natural = [min(pair) for pair in zip(found.natural, found.death, strict=True)]
    return found


def _workspaces(run: Run, names: list[int], placed: dict[int, tuple[Mark, tuple[int, ...]]]) -> set[int]:
    """Names of the storages that nothing in Python ever saw, and that are still there when the step is over."""
    left = {name for event, name in zip(run.events, names, strict=True) if event.kind == "alloc"}
    left.difference_update(name for event, name in zip(run.events, names, strict=True) if event.kind == "free")
    return left.difference(*(storages for _, storages in placed.values()))


def _name_storages(
    run: Run,
) -> tuple[list[int], dict[int, int], dict[int, tuple[Mark, tuple[int, ...]]], dict[int, int]]:
    """Give each storage of a run a name of its own: addresses are used again.

    Returns:
        The name of each event's storage (0 for markers, and for older storages), for each copy the storage that it is
        a copy of (0 for what else the recorder allocates), each marker with the names of its storages, and the keys of
        older storages by their negative names.
    """
    live: dict[int, int] = {}  # by address
    aside = False
    older: dict[int, int] = {}
    names: list[int] = []
    copied: dict[int, int] = {}
    placed: dict[int, tuple[Mark, tuple[int, ...]]] = {}
    saved: list[int] = []

    def named(key: int) -> int:
        if key not in live:
            older[-len(older) - 1] = key
            live[key] = -len(older)
        return live[key]

    for number, event in enumerate(run.events, start=1):
        if event.kind == "alloc":
            live[event.key] = number
            names.append(number)
            if aside:
                copied[number] = 0
        elif event.kind == "free":
            names.append(max(live.pop(event.key, 0), 0))
        else:
            names.append(0)
            mark = run.marks[event.key]
            aside = mark.kind == "aside" or (aside and mark.kind in ("release", "ready"))
            storages = [named(key) for key in mark.keys if key]
            if mark.kind == "pack":
                saved.append(storages[0] if storages else 0)
            elif mark.kind == "unpack":
                original = saved[mark.index]
                copied.update((each, original) for each in storages if original and each > 0 and each != original)
            placed[event.key] = mark, tuple(filter(None, (copied.get(each, each) for each in storages)))
    return names, copied, placed, older
