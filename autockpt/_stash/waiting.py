"""Storages that only saved tensors would keep alive: the plain step holds them as long as the graph.

step 1   outputs.append(model(x))       its graph gets no backward, and what it saved waits
step 2   model(...) · del outputs[0] ·  here the plain step would free that
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .._torch import private


@dataclass(slots=True, eq=False)
class SavedStorage:
    """A storage of which a saved tensor waits elsewhere. This object keeps nothing alive.

    Attributes:
        storage: the storage.
        nbytes: its size.
        saves: what waits.
    """

    storage: weakref.ref[torch.UntypedStorage]
    nbytes: int
    saves: list[weakref.ref[Any]] = field(default_factory=list)

    def waits(self) -> bool:
        """Whether some of it still waits."""
        return any(each() is not None for each in self.saves)

    def alive(self) -> list[Any]:
        """Return what of it still waits."""
        return [save for each in self.saves if (save := each()) is not None]

    def watch(self, gone: Callable[[], None]) -> list[weakref.ref[Any]]:
        """Return weak references. While somebody holds them, they call `gone` when the last of what waits is freed."""

        def over(_: object) -> None:
            if not self.waits():
                gone()

        return [weakref.ref(save, over) for each in self.saves if (save := each()) is not None]


class Waiting:
    """The storages of which a step has put something elsewhere."""

    def __init__(self) -> None:
        self._storages: list[SavedStorage] = []
        self._newest: dict[int, SavedStorage] = {}  # by key: a new storage may have the key of one that is gone

    def add(self, tensor: torch.Tensor, save: object) -> SavedStorage:
        """Note that `save` waits in the place of a tensor; return what is known of the tensor's storage."""
        known = self.of(tensor)
        if known is None:
            storage = tensor.untyped_storage()
            known = self._newest[private.storage_key(tensor)] = SavedStorage(weakref.ref(storage), storage.nbytes())
            self._storages.append(known)
        known.saves.append(weakref.ref(save))
        return known

    def of(self, tensor: torch.Tensor) -> SavedStorage | None:
        """Return what is known of a tensor's storage; None if nothing of it was put elsewhere."""
        known = self._newest.get(private.storage_key(tensor))
        return known if known is not None and known.storage() is tensor.untyped_storage() else None

    def takes_over(self, others: list[SavedStorage]) -> None:
        """Note what steps before have put elsewhere."""
        self._storages += others

    def alone(self) -> list[SavedStorage]:
        """Return the storages that only graphs would hold."""
        return [each for each in self._storages if each.storage() is None and each.waits()]
