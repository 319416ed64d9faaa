"""Numbers and words at objects that a function reaches: a replay reads those of its forward.

    self.scale        of an object that is bound or closed over
    model.cfg["s"]    in a dictionary at a module or at such an object
    Config.scale      of a class

The loop may change them between forward and backward. Objects are held weakly, and only numbers and words are kept of
them: what else they hold may lead to the frame.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from ..objects.kinds import ATOMS

MOST = 1000
"""Of larger dictionaries nothing is kept."""

MISSING = object()


class _Place(NamedTuple):
    """Where numbers were found: the attributes of an object, or the items of a dictionary at one of them."""

    owner: weakref.ref[Any]
    attribute: str | None
    found: dict[Any, Any]

    def space(self) -> Any:
        """Return what has them now; None where that is gone."""
        owner = self.owner()
        if owner is None:
            return None
        if self.attribute is None:
            return vars(owner)
        inside = vars(owner).get(self.attribute)
        return inside if type(inside) is dict else None


class Change(NamedTuple):
    """A number that is another one now.

    Attributes:
        place: where it is.
        key: its name there.
        now: what is there now.
    """

    place: _Place
    key: Any
    now: object


class Numbers:
    """The numbers and words at some objects.

    Args:
        modules: modules: what is in dictionaries at their attributes.
        others: objects and classes: their attributes too.
    """

    __slots__ = ("_places",)

    def __init__(self, modules: Iterable[nn.Module], others: Iterable[Any]) -> None:
        self._places = [*_inside(modules)]
        for each in others:
            try:
                owner = weakref.ref(each)
            except TypeError:  # with slots, or of an extension
                continue
            found = _atoms(vars(each))
            if found:
                self._places.append(_Place(owner, None, found))
            if not isinstance(each, type):
                self._places += _inside([each])

    def put(self) -> list[Change]:
        """Set all that have changed to what they were, and return what they are now."""
        changes = []
        for place in self._places:
            space = place.space()
            if space is not None:
                for key, value in place.found.items():
                    now = space.get(key, MISSING)
                    if now is not value and not (type(now) is type(value) and now == value):
                        changes.append(Change(place, key, now))
        for place, key, _ in changes:
            _set(place, key, place.found[key])
        return changes


def take_back_numbers(changes: list[Change]) -> None:
    """Set numbers to what they were when `Numbers.put` found them."""
    for place, key, now in changes:
        _set(place, key, now)


def _inside(owners: Iterable[Any]) -> Iterator[_Place]:
    """Find the numbers in dictionaries at attributes."""
    for owner in owners:
        for name, value in vars(owner).items():
            if type(value) is dict and value and not name.startswith("_"):
                found = _atoms(value)
                if found:
                    yield _Place(weakref.ref(owner), name, found)


def _atoms(space: Any) -> dict[Any, Any]:
    if len(space) > MOST:
        return {}
    return {key: value for key, value in space.items() if type(value) in ATOMS and key not in _OF_CLASSES}


_OF_CLASSES = frozenset(vars(type("", (), {})))
"""What Python itself writes at a class."""


def _set(place: _Place, key: Any, value: object) -> None:
    owner, space = place.owner(), place.space()
    if owner is None or space is None:
        return
    if isinstance(owner, type):
        type.__delattr__(owner, key) if value is MISSING else type.__setattr__(owner, key, value)
    elif value is MISSING:
        space.pop(key, None)
    else:
        space[key] = value
