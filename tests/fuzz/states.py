"""Leaves with a counter: where it lives, what writes it, and when it is read.

The places are those that docs/replays.md names under "What Python objects hold".
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tests.fuzz.leaves import WIDTH
from tests.toys import elsewhere

__all__ = ["EXACT_STATES", "OWN", "PLACES", "STATES", "counts_in"]


class Key:
    """What a module looks its counter up by: copies and doubles of the module have the same one."""


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class Descriptor:
    """Keeps an attribute of other objects, by their keys."""

    def __init__(self) -> None:
        self.values: dict[Key, int] = {}

    def __get__(self, owner: Any, kind: type) -> int:
        return self.values.get(owner.key, 0)

    def __set__(self, owner: Any, value: int) -> None:
        self.values[owner.key] = value


class Falls:
    """Finds its counter where an attribute is missing."""

    def __init__(self) -> None:
        self.__dict__["values"] = {"n": 0}

    def __getattr__(self, name: str) -> int:
        return int(self.__dict__["values"][name])

    def __setattr__(self, name: str, value: int) -> None:
        self.__dict__["values"][name] = value


class Row(list[int]):
    """A list with attributes."""


class Outer:
    class Inner:
        counts: ClassVar[dict[Key, int]] = {}


class Kind:
    counts: ClassVar[dict[Key, int]] = {}


BY_KEY: dict[Key, int] = {}
FAR: dict[Key, nn.Module] = {}
WEAK: weakref.WeakKeyDictionary[Key, int] = weakref.WeakKeyDictionary()
CONTEXT: contextvars.ContextVar[dict[Key, int] | None] = contextvars.ContextVar("counts", default=None)


class Counts:
    """A hook that counts where its owner says, or does nothing."""

    n = 0

    def __init__(self, owner: State) -> None:
        self.owner = owner

    def __call__(self, *_: Any) -> None:
        if self.owner.writer != "Forward":
            self.owner.place.put(self.owner, self.owner.place.get(self.owner) + 1)


class State(nn.Module):
    """A layer that scales what it saves by a counter."""

    kept = Descriptor()
    n: int = 0

    def __init__(self, place: Place, writer: str, read: str) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(()))
        self.key, self.place, self.writer, self.read = Key(), place, writer, read
        self.falls, self.local, self.slotted = Falls(), threading.local(), Slotted()
        FAR[self.key] = nn.Linear(1, 1)
        self.far, self.kind, self.row = weakref.ref(FAR[self.key]), Kind, Row()
        self.objects = np.array([Slotted()], dtype=object)
        weight: Any = self.linear.weight
        weight.box, weight.slotted = {"n": 0}, Slotted()
        if writer == "Before":
            self.linear.register_forward_pre_hook(Counts(self))
        else:
            self.linear.register_forward_hook(Counts(self))

    scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.writer == "Forward":
            self.place.put(self, self.place.get(self) + 1)
        y: Tensor = self.linear(x)
        n = self.place.get(self)
        read = {"Never": 0, "AtOnce": n, "Later": max(0, n - 1)}[self.read]
        return torch.tanh(y * (1 + 0.1 * read) * self.scale)


@dataclass(frozen=True)
class Place:
    """Where a counter lives: how it is read and written."""

    get: Callable[[State], int]
    put: Callable[[State, int], object]


def _in_context(owner: State, n: int) -> None:
    counts = CONTEXT.get()
    if counts is None:
        CONTEXT.set({owner.key: n})
    else:
        counts[owner.key] = n


def _hook(owner: State) -> Any:
    return next(iter((owner.linear._forward_hooks or owner.linear._forward_pre_hooks).values()))


def _attribute(holder: Callable[[State], Any]) -> Place:
    return Place(lambda owner: getattr(holder(owner), "n", 0), lambda owner, n: setattr(holder(owner), "n", n))


def _item(holder: Callable[[State], Any], key: Callable[[State], Any]) -> Place:
    return Place(
        lambda owner: holder(owner).get(key(owner), 0), lambda owner, n: holder(owner).__setitem__(key(owner), n)
    )


OWN = {
    "Module": _attribute(lambda owner: owner),
    "Parameter": _attribute(lambda owner: owner.linear.weight),
    "Buffer": _attribute(lambda owner: owner.scale),
}
"""Places that a replay puts back by itself."""

PLACES = {
    **OWN,
    "InParameter": _item(lambda owner: vars(owner.linear.weight)["box"], lambda owner: "n"),
    "SlotInParameter": _attribute(lambda owner: vars(owner.linear.weight)["slotted"]),
    "Hook": _attribute(_hook),
    "Slot": _attribute(lambda owner: owner.slotted),
    "Thread": _attribute(lambda owner: owner.local),
    "Falls": _attribute(lambda owner: owner.falls),
    "Descriptor": Place(lambda owner: owner.kept, lambda owner, n: setattr(owner, "kept", n)),
    "Global": _item(lambda owner: BY_KEY, lambda owner: owner.key),
    "Weak": _item(lambda owner: WEAK, lambda owner: owner.key),
    "Elsewhere": Place(lambda owner: elsewhere.counted(owner.key), lambda owner, n: elsewhere.put(owner.key, n)),
    "FarModule": _attribute(lambda owner: FAR[owner.key]),
    "Reference": _attribute(lambda owner: owner.far()),
    "Subclass": _attribute(lambda owner: owner.row),
    "Objects": _attribute(lambda owner: owner.objects[0]),
    "NestedClass": _item(lambda owner: Outer.Inner.counts, lambda owner: owner.key),
    "ClassInAttribute": _item(lambda owner: owner.kind.counts, lambda owner: owner.key),
    "Context": Place(lambda owner: (CONTEXT.get() or {}).get(owner.key, 0), _in_context),
}

STATES: dict[str, Callable[[], nn.Module]] = {
    f"State{place}{writer}{read}": partial(State, PLACES[place], writer, read)
    for place in PLACES
    for writer in ("Forward", "Before", "After")
    for read in ("Never", "AtOnce", "Later")
}

EXACT_STATES = frozenset(name for name in STATES if any(name.startswith(f"State{place}") for place in OWN))


def counts_in(model: nn.Module) -> dict[str, int]:
    """The counters in a model, by the names of their modules."""
    return {
        f"counter of {name}": module.place.get(module)
        for name, module in model.named_modules()
        if isinstance(module, State)
    }
