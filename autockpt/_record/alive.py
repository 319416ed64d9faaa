"""What is alive of a class, found while other threads run."""

from __future__ import annotations

import gc
from typing import TypeVar

T = TypeVar("T")


def alive(kind: type[T]) -> list[T]:
    """Return every object of a class, or of one derived from it, that Python's collector knows.

    Asked for by what refers to the classes, as their objects do. ``gc.get_objects`` would hand out what other threads
    are just making too, and a tuple that somebody else holds cannot be finished (``SystemError``).
    """
    kinds: list[type[T]] = [kind]
    for each in kinds:
        kinds += [derived for derived in type.__subclasses__(each) if derived not in kinds]
    return [thing for thing in gc.get_referrers(*kinds) if issubclass(type(thing), kind)]
