"""Refuses pins that no plan could honour, before any step. Which modules are called is known only after one."""

from __future__ import annotations

import difflib
import fnmatch
from itertools import combinations

from torch import nn

from .._data.errors import PinError
from .._data.goal import Pins
from .._data.offload import Offload
from .._data.text.keys import split_function_pattern, split_pattern
from .roots import title

NEAREST, CUTOFF = 3, 0.4

TOGETHER = ({"recompute", "boundary"}, {"keep", "saved"})
"""Kinds of pins that one call can have both: it is recomputed, or kept, and what that needs waits elsewhere."""


NAMES_MORE = {"keep", "recompute"}
"""Kinds of pins that name the model itself, and torch functions, too."""


def refuse_unclear_pins(model: nn.Module, pins: Pins, offload: Offload | None) -> None:
    """Refuse a pattern that no module's name matches, and a module that is pinned in two ways.

    Args:
        model: the model whose modules the patterns name.
        pins: the calls that are kept, and those that are recomputed.
        offload: the calls that move; None where nothing does.

    Raises:
        PinError: there is one.
    """
    given = {"keep": pins.keep, "recompute": pins.recompute}
    if offload is not None:
        given |= {"saved": offload.saved, "boundary": offload.boundary}
    if not any(given.values()):
        return
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    for kind, pattern in ((kind, pattern) for kind, each in given.items() for pattern in each):
        name, _ = split_pattern(pattern)
        known = any(fnmatch.fnmatchcase(each, name) for each in names)
        if not known and not (kind in NAMES_MORE and _names_more(model, names, pattern)):
            near = ", ".join(map(repr, _nearest(name, names)))
            raise PinError(f"no module matches {pattern!r}; " + (f"near are {near}" if near else "the model has none"))
    for one, other in combinations(given, 2):
        if {one, other} not in TOGETHER:
            _refuse_both(names, one, given[one], other, given[other])


def _names_more(model: nn.Module, names: list[str], pattern: str) -> bool:
    """Whether a pattern names the model, or torch functions that it or one of its modules may call."""
    around, function = split_function_pattern(pattern)
    name, _ = split_pattern(around)
    if not function:
        return pattern in ("", title(model))
    return not name or any(fnmatch.fnmatchcase(each, name) for each in names)


def _refuse_both(names: list[str], one: str, ones: tuple[str, ...], other: str, others: tuple[str, ...]) -> None:
    """Refuse a module of which the same call is pinned in two ways."""
    for first in ones:
        for second in others:
            (name, occurrence), (name_too, occurrence_too) = split_pattern(first), split_pattern(second)
            if occurrence and occurrence_too and occurrence != occurrence_too:
                continue
            for each in names:
                if fnmatch.fnmatchcase(each, name) and fnmatch.fnmatchcase(each, name_too):
                    raise PinError(f"{each!r} matches {one}={first!r} and {other}={second!r}: only one of both can be")


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
