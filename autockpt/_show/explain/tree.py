"""The module tree, in which calls at the same place that look alike share a row; and what calls save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from ..._data.profile import Profile
from ..._data.step.tables import CallRecord
from .names import span

SMALL = 0.005  # modules that save less than this share of the activations are counted, not listed


class TreeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Module calls at the same place of the tree that have the same structure. Figures are sums over these calls.

    Attributes:
        depth: the depth in the tree; 0 for the root.
        name: a readable name, relative to the parent: ``h.0 … h.11``; empty for the root.
        first: the key of the first call.
        class_name: the class of the module.
        calls: how many calls the row stands for.
    """

    depth: int
    name: str
    first: str
    class_name: str
    calls: int

    def label(self, model: str) -> str:
        """Return the name, indented by depth; for the root, the model's name."""
        return "  " * self.depth + (self.name or model)


def walk(calls: Sequence[CallRecord]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield groups of calls that look alike, with the fields of their `TreeRow`; each group before its children."""
    children: list[list[int]] = [[] for _ in calls]
    for i, call in enumerate(calls[1:], 1):
        children[call.parent].append(i)

    def descend(group: list[int], depth: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
        first = calls[group[0]]
        names = dict.fromkeys(calls[i].key.removeprefix(f"{calls[calls[i].parent].name}.") for i in group)
        place = {"depth": depth, "name": span([*names]), "first": first.key}
        yield group, {**place, "class_name": first.class_name, "calls": len(group)}
        # Calls that look alike have equally many children. Consecutive children that look alike form one group.
        for _, positions in groupby(range(len(children[group[0]])), key=lambda k: _look(calls, children[group[0]][k])):
            places = list(positions)
            yield from descend([children[i][k] for i in group for k in places], depth + 1)

    return descend([0], 0)


def _look(calls: Sequence[CallRecord], i: int) -> tuple[object, ...]:
    name = ["*" if part.isdigit() else part for part in calls[i].name.split(".")]  # h.3.mlp and h.4.mlp look alike
    return calls[i].class_name, calls[i].signature, calls[i].stop - i, name


def saved_inside(profile: Profile, *, once: bool) -> list[set[int]]:
    """Return the tensors that are saved inside each call. If `once`, a tensor counts only where it is saved first."""
    saved: list[set[int]] = [set() for _ in profile.calls]
    seen = {-1}  # the index of a save without a tensor
    for tensor, call in zip(profile.saves.tensor, profile.saves.call, strict=True):
        if tensor not in seen:
            saved[call].add(tensor)
            if once:
                seen.add(tensor)
    for i in range(len(profile.calls) - 1, 0, -1):  # children come after their parents in pre-order
        saved[profile.calls[i].parent] |= saved[i]
    return saved
