"""The module tree: calls at one place of it in one row where they look alike, and what they save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..._data.profile import Profile
from ..._data.tables import CallRecord
from .names import alike, from_parent, span

SMALL = 0.005  # modules that save less than this share of the activations are counted, not listed


class TreeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Module calls at one place of the tree, structurally identical siblings together. Figures are their sum.

    Attributes:
        depth: 0 for the root.
        name: for people, from the parent on: ``h.0 … h.11``; empty for the root.
        first: the first of the calls, by its key.
        class_name: class of the module.
        calls: how many calls the row stands for.
    """

    depth: int
    name: str
    first: str
    class_name: str
    calls: int

    def label(self, model: str) -> str:
        """Return the name, indented by depth; that of the root is its model's."""
        return "  " * self.depth + (self.name or model)


def place_of(group: Sequence[int], depth: int, calls: Sequence[CallRecord]) -> dict[str, Any]:
    """Return the fields of a `TreeRow` for some of the calls."""
    first = calls[group[0]]
    names = dict.fromkeys(from_parent(calls[i], calls) for i in group)
    return {
        "depth": depth,
        "name": span(list(names)),
        "first": first.key,
        "class_name": first.class_name,
        "calls": len(group),
    }


def walk(calls: Sequence[CallRecord]) -> Iterator[tuple[list[int], int]]:
    """Yield the calls that look alike, with their depth: from the root down, each before its children."""
    children: list[list[int]] = [[] for _ in calls]
    for i, call in enumerate(calls[1:], 1):
        children[call.parent].append(i)

    def descend(group: list[int], depth: int) -> Iterator[tuple[list[int], int]]:
        yield group, depth
        for inner in alike([children[i] for i in group], calls):
            yield from descend(inner, depth + 1)

    return descend([0], 0)


def saved_inside(profile: Profile, *, once: bool) -> list[set[int]]:
    """Return the tensors that are saved inside each call; each only where forward saves it first, if `once`."""
    saved: list[set[int]] = [set() for _ in profile.calls]
    seen = {-1}  # what stands for a save of no tensor
    for tensor, call in zip(profile.saves.tensor, profile.saves.call, strict=True):
        if tensor not in seen:
            saved[call].add(tensor)
            if once:
                seen.add(tensor)
    for i in range(len(profile.calls) - 1, 0, -1):  # children come after their parents in pre-order
        saved[profile.calls[i].parent] |= saved[i]
    return saved
