"""Attributes whose tensors a replay does not read: nothing holds them for it once forward overwrites them.

    forward   ├─ self.last = a of the step before ─┤ overwritten: a goes, as in a plain step
    replay    self.last is hollow, as a was: whoever reads it gets an error, and never another result

Whether a call reads them is known of the recorded step, and seen in each forward (`watch`). What that reads after
all is held, and so is what it does not overwrite: the loop may do so before backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .. import _torch_private
from .._calls.attributes import may_hold_tensors
from .._calls.values import decode, encode, kept_whole, not_simple
from .._calls.watched import unwatch, watch
from .held import Detached
from .hollow import Shape

READ = "what the attribute {!r} held before forward overwrote it, which no forward was seen to read"

Inside: TypeAlias = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""Buffers or attributes inside a module: the path to each module that has some, and their names."""


class Spared:
    """What stands at an attribute, by what it looks like.

    Args:
        leaves: the tensors in it.
        templates: the rest of it, encoded.
        name: the attribute's name.
    """

    __slots__ = ("_held", "_looks", "_name", "_templates", "_were")

    def __init__(self, leaves: list[Tensor], templates: list[Any], name: str) -> None:
        self._templates, self._name = templates, name
        self._looks = [Shape(each, READ.format(name)) for each in leaves]
        self._were = [(weakref.ref(each), _torch_private.version(each)) for each in leaves]
        self._held: list[Detached] = []

    def watch(self) -> None:
        """Watch from now on whether the tensors are read."""
        for each in self._alive():
            watch(each, self.hold)

    def unwatch(self) -> None:
        """Watch no longer."""
        for each in self._alive():
            unwatch(each)

    def hold(self) -> None:
        """Hold the tensors, if all are there and none has changed."""
        self._held = self._held or self._there()

    def settle(self, now: object) -> None:
        """Hold what is still there after forward; `now` is what stands at the attribute then."""
        found: list[Tensor] = []
        encode([now], found)
        if [*map(id, found)] == [id(reference()) for reference, _ in self._were]:
            self.hold()

    def leaf(self) -> Any:
        """Return for a replay what forward found: hollow, but for tensors that somebody holds, as they were."""
        there = self._held or self._there()
        return decode(self._templates, [each.leaf() for each in there or self._looks])[0]

    def _there(self) -> list[Detached]:
        found = self._alive()
        if len(found) < len(self._were) or _torch_private.versions(found) != [version for _, version in self._were]:
            return []
        return [Detached(each, f"attribute {self._name!r}") for each in found]

    def _alive(self) -> list[Tensor]:
        return [tensor for reference, _ in self._were if (tensor := reference()) is not None]


def spared_in(module: nn.Module, unread: Inside) -> dict[nn.Module, dict[str, Spared]]:
    """Return what stands at these attributes of modules inside a module, as far as it can be hollow; it is watched."""
    found: dict[nn.Module, dict[str, Spared]] = {}
    for path, names in unread:
        owner: nn.Module | None = module
        for part in path:
            owner = None if owner is None else owner._modules.get(part)
        if owner is None:
            continue
        for name in names:
            leaves: list[Tensor] = []
            value = vars(owner).get(name)
            templates = encode([value], leaves) if may_hold_tensors(value) else []
            plain = all(type(each) is Tensor and each.layout is torch.strided and not each.is_nested for each in leaves)
            if leaves and plain and not not_simple(kept_whole(templates)):
                found.setdefault(owner, {})[name] = Spared(leaves, templates, name)
    for spared in every(found):
        spared.watch()
    return found


def every(found: dict[nn.Module, dict[str, Spared]]) -> Iterable[Spared]:
    """Return all that stands at attributes."""
    return [spared for own in found.values() for spared in own.values()]
