"""Which buffers a call changed: what they were when it began, held against what they are when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class BufferBefore:
    """A buffer as it was when a call began.

    Attributes:
        owner: the module's buffers, by name.
        key: its name there.
        storage: key of its storage; 0 if it has none.
        value: a copy; None where values are not looked at.
        version: how often it had been changed in place.
    """

    owner: dict[str, Any]
    key: str
    storage: int
    value: torch.Tensor | None
    version: int

    @property
    def now(self) -> torch.Tensor | None:
        """What is bound in its place."""
        return self.owner.get(self.key)

    @property
    def counted(self) -> bool:
        """Whether the version says that it was changed."""
        return self.now is not None and self.now._version != self.version

    @property
    def moved(self) -> bool:
        """Whether it is not what it was: by value if one was copied, else by version."""
        if self.now is None or self.value is None:
            return self.now is None or self.counted
        return not torch.equal(self.now, self.value)


def buffer_before(owner: dict[str, Any], key: str, storage: int, *, values: bool) -> BufferBefore:
    """Note the buffer that `owner` has under `key`; see `BufferBefore`."""
    buffer: torch.Tensor = owner[key]
    value = buffer.detach().clone() if values and buffer.layout == torch.strided else None
    return BufferBefore(owner, key, storage, value, buffer._version)


def buffers_before(
    name: str, module: torch.nn.Module, storage: Callable[[torch.Tensor], int], *, values: bool
) -> dict[str, BufferBefore]:
    """Note the buffers inside a module.

    Args:
        name: the module's qualified name.
        module: the module.
        storage: names the storage of a tensor.
        values: whether tensors have values, which are then copied.

    Returns:
        The buffers by qualified name.
    """
    found = {}
    for path, member in module.named_modules(prefix=name):
        for key, buffer in member._buffers.items():
            if buffer is not None:
                where = storage(buffer) if buffer.device.type != "meta" else 0
                found[f"{path}.{key}" if path else key] = buffer_before(member._buffers, key, where, values=values)
    return found


def moved_buffers(before: Mapping[str, BufferBefore], *, values: bool) -> list[str]:
    """Names of the buffers that changed.

    Without values, versions decide; since batch normalisation moves only its counter's, the buffers that live beside
    one that moved count too.
    """
    moved = {name for name, was in before.items() if was.moved}
    if not values:
        owners = {id(before[name].owner) for name in moved}
        moved = {name for name, was in before.items() if id(was.owner) in owners}
    return sorted(moved)
