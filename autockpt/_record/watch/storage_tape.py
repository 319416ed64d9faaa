"""A tape of tensors without memory, which no allocator sees: storages as operators make and Python drops them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch

from ..._torch import private
from ..._torch.devices import AllocatorTape, Event
from .routing import Given, routed_operators, tensors_in

COLLECTIVES = ("c10d", "fsdp")
"""Namespaces of the operators that bring tensors from ranks to ranks, and of those that pack and unpack them."""

WAITS = "_c10d_functional.wait_tensor.default"
"""Hands on what it is given. On fake tensors it would make another."""

GATHERING = ("gather", "split")
"""What the names of those have that bring weights; the others take gradients."""


class StorageTape(routed_operators):
    """A tape of storages as operators make them and Python lets them go, or gives them another size.

    Attributes:
        gathered: places among its events where weights were allocated that collectives bring, and what they come in.
        reduced: places where gradients were that collectives take, and what these go in.
    """

    def __init__(self) -> None:
        super().__init__(self._on_operator)
        self._events: list[Event] = []
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}  # by storage, with its place among the events
        self._marks, self._around = 0, ExitStack()
        self.gathered: set[int] = set()
        self.reduced: set[int] = set()

    def __enter__(self) -> Any:
        self._around.enter_context(private.told_of_resizes(self._resized))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._around.close()

    def mark(self) -> int:
        self._events.append(Event("mark", self._marks))
        self._marks += 1
        return self._marks - 1

    def key(self, tensor: torch.Tensor) -> int:
        return private.storage_key(tensor)

    def events(self) -> list[Event]:
        return [*self._events]

    def _on_operator(self, op: Any, given: Given, run: Callable[[], Any]) -> Any:
        if str(op) == WAITS:
            return given[0][0]
        known = {*map(self.key, tensors_in(given))}
        output = run()
        for tensor in tensors_in(output):
            if (key := self.key(tensor)) not in known and key not in self._live:
                self._born(key, tensor.untyped_storage())
        if op.namespace in COLLECTIVES:
            here = {*known, *map(self.key, tensors_in(output))} & self._live.keys()
            places = self.gathered if any(word in str(op) for word in GATHERING) else self.reduced
            places.update(self._live[key][1] for key in here)
        return output

    def _born(self, key: int, storage: torch.UntypedStorage) -> None:
        if storage.nbytes():
            self._live[key] = weakref.ref(storage, lambda _: self._gone(key)), len(self._events)
            self._events.append(Event("alloc", key, storage.nbytes()))

    def _resized(self, storage: torch.UntypedStorage, before_bytes: int) -> None:
        if before_bytes:
            self._gone(storage._cdata)
        self._born(storage._cdata, storage)

    def _gone(self, key: int) -> None:
        if self._live.pop(key, None) is not None:  # no more than once: what has lost its bytes may go later
            self._events.append(Event("free", key))


Tape: TypeAlias = AllocatorTape | StorageTape
"""Where a run is recorded; used as a context around the run."""
