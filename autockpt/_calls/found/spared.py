"""Attributes whose tensors a replay does not read. Once forward overwrites one, its old tensors are not held.

    forward   ├─ self.last is a, of the step before ─┤ overwritten: a is freed, as in a plain step
    replay    self.last is hollow, with the shape of a: code that reads it gets an error, never another result

The recorded step shows whether a call reads such a tensor, and each forward is watched for it (`watch`). A tensor that
forward does read is held. One that forward does not overwrite is held too: the loop may overwrite it before backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..._torch import private
from ..objects.attributes import may_hold_tensors
from ..objects.watched import unwatch, watch
from ..values import decode, encode, kept_whole, not_simple
from .held import Detached
from .hollow import Shape

READ = "the old value of attribute {!r}, which forward overwrote and was never seen to read"

Inside: TypeAlias = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""Buffers or attributes inside a module: the path to each module that has some, and their names."""


class Spared:
    """The value of an attribute, without holding its tensors: what they look like, and weak references to them.

    Args:
        leaves: the tensors in the value.
        templates: the rest of the value, encoded.
        name: the attribute's name.
    """

    __slots__ = ("_held", "_looks", "_name", "_templates", "_were")

    def __init__(self, leaves: list[Tensor], templates: list[Any], name: str) -> None:
        self._templates, self._name = templates, name
        self._looks = [Shape(each, READ.format(name)) for each in leaves]
        self._were = [(weakref.ref(each), private.version(each)) for each in leaves]
        self._held: list[Detached] = []

    def watch(self) -> None:
        """Begin to watch the tensors: they are held once one is read."""
        for each in self._alive():
            watch(each, self.hold)

    def unwatch(self) -> None:
        """Stop watching the tensors."""
        for each in self._alive():
            unwatch(each)

    def hold(self) -> None:
        """Hold the tensors, if all are alive and none was changed in place."""
        self._held = self._held or self._there()

    def settle(self, now: object) -> None:
        """Hold the tensors if forward has not overwritten them; `now` is the attribute's value after forward."""
        found: list[Tensor] = []
        encode([now], found)
        if [*map(id, found)] == [id(reference()) for reference, _ in self._were]:
            self.hold()

    def leaf(self) -> Any:
        """Return the value for a replay: with its own tensors if all are alive and unchanged, else with hollow ones."""
        there = self._held or self._there()
        return decode(self._templates, [each.leaf() for each in there or self._looks])[0]

    def _there(self) -> list[Detached]:
        found = self._alive()
        if len(found) < len(self._were) or private.versions(found) != [version for _, version in self._were]:
            return []
        return [Detached(each, f"attribute {self._name!r}") for each in found]

    def _alive(self) -> list[Tensor]:
        return [tensor for reference, _ in self._were if (tensor := reference()) is not None]


def spared_in(module: nn.Module, unread: Inside) -> dict[nn.Module, dict[str, Spared]]:
    """Return the values of the `unread` attributes that hollow tensors can stand for, and begin to watch them."""
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
    """Return the values of all attributes in `found`."""
    return [spared for own in found.values() for spared in own.values()]
