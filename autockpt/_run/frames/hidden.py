"""What calls may read and change that no replay puts back: the inside of attributes, closures, globals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from ... import _torch_private
from ..._calls.contents import Contents
from ..._calls.values import kept_whole
from .witness import Witness, same, witness_of

if TYPE_CHECKING:
    from .frame import Call


class Hidden:
    """What some calls can reach, as it is now.

    Attributes of their modules are no part of it, but what is inside those is: a replay has them as forward found them.

    Args:
        calls: the calls.
        weights: whether parameters are part of it, and buffers of which a replay has no copies.

    Attributes:
        generators: torch's, among it.
    """

    def __init__(self, calls: Iterable[Call], *, weights: bool = False) -> None:
        modules: dict[str, torch.nn.Module] = {}
        roots: dict[str, object] = {}
        copied: set[int] = set()
        for call in calls:
            if call.module.member is not None:
                modules |= call.module.member.named_modules(prefix=call.key.rpartition("#")[0])
                copied |= call.module.copied
            roots[f"an argument of {call.key}"] = kept_whole(call.arguments)
        self._contents = Contents(roots | modules, bare=modules.values())
        hooks = {
            f"a hook of {name}": [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
            for name, module in modules.items()
            if module._forward_hooks or module._forward_pre_hooks
        }
        self._hooks = Contents(hooks, bare=modules.values())
        self.generators = self._contents.generators
        self._tensors = [tensor for _, tensor in self._contents.tensors]
        self._versions = _torch_private.versions(self._tensors)
        self._weights = {
            f"{name}.{key}": (weight, witness_of(weight))
            for name, module in modules.items()
            for key, weight in (*module._parameters.items(), *module._buffers.items())
            if weights and weight is not None and id(weight) not in copied
        }

    def changed(self) -> list[str]:
        """Name what is not as it was."""
        return [*self._contents.changed(), *self._written()]

    def lost(self) -> list[str]:
        """Name what is not as it was and cannot be put back. Not every write to a weight is counted as a version."""
        written = [name for name, (weight, before) in self._weights.items() if not _is(weight, before)]
        return [*written, *self._contents.lost(), *self._written()]

    def put_back(self) -> None:
        """Have it as it was, but for what is lost."""
        self._contents.restore()

    def put_hooks_back(self) -> None:
        """Have what hooks keep as it was: they fire again in a replay, and that one has been for nothing."""
        self._hooks.restore()

    def _written(self) -> list[str]:
        versions = _torch_private.versions(self._tensors)
        found = zip(self._contents.tensors, self._versions, versions, strict=True)
        return [name for (name, _), before, now in found if before != now]


def _is(weight: torch.Tensor, before: Witness | None) -> bool:
    now = witness_of(weight)
    return before is None or now is None or same(before, now)
