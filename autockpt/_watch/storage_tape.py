"""A tape of tensors without memory, which no allocator sees: storages as operators make and Python drops them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .. import _torch_private as private
from .._device import AllocatorTape, Event
from .routing import Given, routed_operators, tensors_in


class StorageTape(routed_operators):
    """A tape of storages as operators make them and Python lets them go."""

    def __init__(self) -> None:
        super().__init__(self._on_operator)
        self._events: list[Event] = []
        self._live: dict[int, weakref.ref[Any]] = {}
        self._marks = 0

    def mark(self) -> int:
        self._events.append(Event("mark", self._marks))
        self._marks += 1
        return self._marks - 1

    def key(self, tensor: torch.Tensor) -> int:
        return private.storage_key(tensor)

    def events(self) -> list[Event]:
        return [*self._events]

    def _on_operator(self, op: Any, given: Given, run: Callable[[], Any]) -> Any:
        known = {*map(self.key, tensors_in(given))}
        output = run()
        for tensor in tensors_in(output):
            if (key := self.key(tensor)) not in known and key not in self._live:
                self._born(key, tensor.untyped_storage())
        return output

    def _born(self, key: int, storage: torch.UntypedStorage) -> None:
        if storage.nbytes():
            self._live[key] = weakref.ref(storage, lambda _: self._gone(key))
            self._events.append(Event("alloc", key, storage.nbytes()))

    def _gone(self, key: int) -> None:
        self._live.pop(key, None)
        self._events.append(Event("free", key))


Tape: TypeAlias = AllocatorTape | StorageTape
"""Where a run is recorded; used as a context around the run."""
