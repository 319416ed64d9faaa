"""Refuses pins that match no module of a model, before any step: which modules are called is known only after one."""

from __future__ import annotations

import difflib
import fnmatch

from torch import nn

from .._data.errors import PinError
from .._data.goal import Pins

NEAREST, CUTOFF = 3, 0.4


def refuse_unknown_names(model: nn.Module, pins: Pins) -> None:
    """Refuse a pattern that no module's name matches; say which names are near.

    Raises:
        PinError: there is such a pattern.
    """
    if not pins:
        return
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    for pattern in (*pins.keep, *pins.recompute):
        name, sharp, occurrence = pattern.rpartition("#")
        name = name if sharp and occurrence.isdecimal() else pattern
        if not any(fnmatch.fnmatchcase(each, name) for each in names):
            near = ", ".join(map(repr, _nearest(name, names)))
            raise PinError(f"no module matches {pattern!r}; " + (f"near are {near}" if near else "the model has none"))


def _nearest(wanted: str, names: list[str]) -> list[str]:
    """Return patterns near a wanted one; all match. Modules in numbered layers share one pattern, as ``*.mlp``."""
    patterns: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        patterns[name] = None
        for first in range(1, len(parts)):
            if not parts[first].isdecimal():
                patterns[".".join(["*", *parts[first:]])] = None
    ends = [each for each in patterns if each.rpartition(".")[2] == wanted.rpartition(".")[2]]
    near = ends or difflib.get_close_matches(wanted, patterns, n=NEAREST, cutoff=CUTOFF)
    starred = sorted(near, key=lambda each: (not each.startswith("*"), len(each)))
    return (starred or list(patterns))[:NEAREST]
