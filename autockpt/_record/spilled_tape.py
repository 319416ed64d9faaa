"""From the tape of a step whose saves were spilled to that of the plain step.

Nothing but forward itself keeps a storage alive in a spilled step, so its free is its natural death. What the plain
step would have held, and until when, follows from the markers of saves; copies that backward read are no storages of
the plain step, and go.

    spilled    alloc 7 · pack 7 · free 7 · ...            · alloc 9 · unpack 9 · free 9 · release
    natural    alloc 1 · pack 1 · free 1 · ...                      · unpack 1          · release
    plain      alloc 1 · pack 1          · ...                      · unpack 1          · release · free 1
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from .assemble import WatchedRun
from .tape import Event
from .watch import Mark


def tell_apart(run: WatchedRun) -> tuple[WatchedRun, WatchedRun]:
    """Turn the tape of a spilled step into that of the plain one.

    Args:
        run: the spilled step; each of its unpack markers has the key of what was unpacked.

    Returns:
        The step with every storage dying as soon as no more than saves hold it, and the plain step, in which they do.
        Storages have keys that are used once, and copies are the storages that they are copies of.
    """
    names, copied, marks = _name_storages(run)
    saved = [mark.keys[0] for mark in marks if mark.kind == "pack"]
    natural: list[Event] = []
    plain: list[Event] = []
    holders: Counter[int] = Counter()  # of each storage: itself, its saves, its copies

    def let_go(storage: int) -> None:
        holders[storage] -= 1
        if storage and not holders[storage]:
            plain.append(Event("free", storage))

    for event, name in zip(run.events, names, strict=True):
        storage = copied.get(name, name)
        if event.kind == "mark":
            natural.append(event)
            plain.append(event)
            if marks[event.key].kind == "pack":
                holders[marks[event.key].keys[0]] += 1
            elif marks[event.key].kind == "release":
                let_go(saved[marks[event.key].index])
        elif event.kind == "alloc":
            holders[storage] += 1
            if storage == name:
                natural.append(Event("alloc", name, event.bytes))
                plain.append(natural[-1])
        else:
            if storage == name:
                natural.append(Event("free", name))
            let_go(storage)
    return (
        dataclasses.replace(run, events=natural, marks=marks),
        dataclasses.replace(run, events=plain, marks=marks),
    )


def _name_storages(run: WatchedRun) -> tuple[list[int], dict[int, int], list[Mark]]:
    """Give each storage born in a run a number of its own.

    Returns:
        The number of each event's storage (0 for markers and for older storages), for each copy the storage that it
        is a copy of, and the markers with numbers instead of addresses.
    """
    live: dict[int, int] = {}  # by address
    names: list[int] = []
    copied: dict[int, int] = {}
    marks: list[Mark] = []
    saved: list[int] = []
    for number, event in enumerate(run.events, start=1):
        if event.kind == "alloc":
            live[event.key] = number
            names.append(number)
        elif event.kind == "free":
            names.append(live.pop(event.key, 0))
        else:
            names.append(0)
            mark = run.marks[event.key]
            keys = [live.get(key, 0) for key in mark.keys]
            if mark.kind == "pack":
                saved.append(keys[0])
            elif mark.kind == "unpack":
                copied.update((key, saved[mark.index]) for key in keys if key and key != saved[mark.index])
            marks.append(dataclasses.replace(mark, keys=tuple(copied.get(key, key) for key in keys)))
    return names, copied, marks
