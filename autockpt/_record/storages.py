"""A tape of storages as operators make them and Python lets them go: for tensors that have no memory of their own."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import _torch_private as private
from .tape import AllocatorTape, Event


class StorageTape(TorchDispatchMode):
    """A tape of storages as operators make them and Python lets them go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._events: list[Event] = []
        self._live: dict[int, weakref.ref[Any]] = {}
        self._marks = 0
        self._open = False

    def __enter__(self) -> StorageTape:
        self._open = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._open = False

    def mark(self) -> int:
        self._events.append(Event("mark", self._marks))
        self._marks += 1
        return self._marks - 1

    def key(self, tensor: torch.Tensor) -> int:
        return private.storage_key(tensor)

    def events(self) -> list[Event]:
        return self._events

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        known = {self.key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and (key := self.key(leaf)) not in known and key not in self._live:
                self._born(key, leaf.untyped_storage())
        return output

    def _born(self, key: int, storage: torch.UntypedStorage) -> None:
        if storage.nbytes():
            self._live[key] = weakref.ref(storage, lambda _: self._gone(key))
            self._events.append(Event("alloc", key, storage.nbytes()))

    def _gone(self, key: int) -> None:
        self._live.pop(key, None)
        if self._open:
            self._events.append(Event("free", key))


Tape: TypeAlias = AllocatorTape | StorageTape
"""Where a run is recorded; used as a context around the run."""
