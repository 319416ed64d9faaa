"""What calls may read and change that no replay puts back: the inside of attributes, closures, globals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from ... import _torch_private
from ..._calls.contents import Contents
from ..._calls.values import kept_whole

if TYPE_CHECKING:
    from .frame import Call


class Hidden:
    """What some calls can reach, as it is now.

    Attributes of their modules are no part of it, but what is inside those is: a replay has them as forward found them.

    Attributes:
        generators: torch's, among it.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        modules: dict[str, torch.nn.Module] = {}
        roots: dict[str, object] = {}
        for call in calls:
            if call.module.member is not None:
                modules |= call.module.member.named_modules(prefix=call.key.rpartition("#")[0])
            roots[f"an argument of {call.key}"] = kept_whole(call.arguments)
        self._contents = Contents(roots | modules, bare=modules.values())
        self.generators = self._contents.generators
        self._tensors = [tensor for _, tensor in self._contents.tensors]
        self._versions = _torch_private.versions(self._tensors)

    def changed(self) -> list[str]:
        """Name what is not as it was."""
        return [*self._contents.changed(), *self._written()]

    def lost(self) -> list[str]:
        """Name what is not as it was and cannot be put back."""
        return [*self._contents.lost(), *self._written()]

    def put_back(self) -> None:
        """Have it as it was, but for what is lost."""
        self._contents.restore()

    def _written(self) -> list[str]:
        versions = _torch_private.versions(self._tensors)
        found = zip(self._contents.tensors, self._versions, versions, strict=True)
        return [name for (name, _), before, now in found if before != now]
