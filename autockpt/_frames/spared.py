"""Attributes whose tensors a replay does not read: nothing holds them for it once forward overwrites them.

    forward   ├─ self.last = a of the step before ─┤ overwritten: a goes, as in a plain step
    replay    self.last is hollow, as a was: whoever reads it gets an error, and never another result

Whether a call reads them is known of the recorded step, and of this forward whether it overwrites them. Where it does
not, they are held as all other attributes are: the loop may overwrite them before backward.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .. import _torch_private
from .._calls.attributes import may_hold_tensors
from .._calls.values import decode, encode, kept_whole, not_simple
from .held import Detached
from .hollow import Shape

READ = "what an attribute held before forward overwrote it, which the recorded step did not read ({})"


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

    def settle(self, now: object) -> None:
        """Hold what is still there after forward; `now` is what stands at the attribute then."""
        found: list[Tensor] = []
        encode([now], found)
        if [*map(id, found)] != [id(reference()) for reference, _ in self._were]:
            return
        if _torch_private.versions(found) == [version for _, version in self._were]:
            self._held = [Detached(each, f"attribute {self._name!r}") for each in found]

    def leaf(self) -> Any:
        """Return for a replay what forward found: hollow, but for tensors that somebody holds, as they were."""
        leaves = [held.leaf() for held in self._held]
        for look, (reference, version) in zip(self._looks, self._were, strict=True) if not leaves else ():
            tensor = reference()
            same = tensor is not None and _torch_private.version(tensor) == version
            leaves.append(Detached(tensor, self._name).leaf() if same and tensor is not None else look.leaf())
        return decode(self._templates, leaves)[0]


Inside: TypeAlias = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""Buffers or attributes inside a module: the path to each module that has some, and their names."""


def spared_in(module: nn.Module, unread: Inside) -> dict[nn.Module, dict[str, Spared]]:
    """Return what stands at these attributes of modules inside a module, as far as it can be hollow."""
    found: dict[nn.Module, dict[str, Spared]] = {}
    for path, names in unread:
        owner: nn.Module | None = module
        for part in path:
            owner = None if owner is None else owner._modules.get(part)
        if owner is None:
            continue
        for name in names:
            value = vars(owner).get(name)
            leaves: list[Tensor] = []
            templates = encode([value], leaves) if may_hold_tensors(value) else []
            plain = all(type(each) is Tensor and each.layout is torch.strided and not each.is_nested for each in leaves)
            if leaves and plain and not not_simple(kept_whole(templates)):
                found.setdefault(owner, {})[name] = Spared(leaves, templates, name)
    return found
