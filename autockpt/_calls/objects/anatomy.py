"""Which modules a model has, and what they hold by name, so that it can be told how a model has changed since."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple, TypeAlias

import torch

MOST_NAMED = 2


class Organ(NamedTuple):
    """A module as part of a model.

    Attributes:
        identity: what tells it from another module in its place.
        tensors: names of its own parameters and buffers.
    """

    identity: int
    tensors: frozenset[str]


Anatomy: TypeAlias = Mapping[str, Organ]
"""The modules of a model by qualified name."""


def anatomy(model: torch.nn.Module) -> Anatomy:
    """Return which modules a model has now. O(modules)."""
    return {
        name: Organ(id(module), frozenset((*module._parameters.keys(), *module._buffers.keys())))
        for name, module in model.named_modules()
    }


def changed(before: Anatomy, now: Anatomy) -> str:
    """Say how a model has changed, in words; empty if it has not. What lies in a new module is not named."""
    kept = now.keys() & before.keys()
    modules = {
        "replaced": [name for name in now if name in kept and now[name].identity != before[name].identity],
        "new": [name for name in now if name not in kept],
        "gone": [name for name in before if name not in kept],
    }
    inside = {name for names in modules.values() for name in names}
    found = [_named(what, [name for name in names if not _lies_in(name, inside)]) for what, names in modules.items()]
    tensors: dict[str, list[str]] = {}  # names of modules by what of their own tensors has changed
    for name in now:
        if name in kept and name not in inside and now[name].tensors != before[name].tensors:
            new, gone = now[name].tensors - before[name].tensors, before[name].tensors - now[name].tensors
            words = [_listed(what, sorted(names)) for what, names in (("new", new), ("gone", gone)) if names]
            tensors.setdefault(", ".join(words), []).append(name)
    found += [f"{_named('tensors of', names)} ({words})" for words, names in tensors.items()]
    return "; ".join(filter(None, found))


def _lies_in(name: str, modules: Set[str]) -> bool:
    return any(name.startswith(f"{each}.") for each in modules)


def _named(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{_listed(what, [name or 'the model itself' for name in names[:MOST_NAMED]])}{more}"


def _listed(what: str, names: list[str]) -> str:
    return f"{what} {', '.join(names)}"
