"""Ranks that agree, through the store of their process group: no collective runs, and no device is asked.

    rank 0   set 7/0 ─ wait for 7/1 ─▶ both values ─▶ choose ─▶ the same
    rank 1   wait for 7/0 ─ set 7/1 ─▶ both values ─▶ choose ─▶ the same       the key says the round and the rank

Rounds are few: while the first plan is on its way. Who waits in vain says for whom.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import torch
from torch import nn

from .. import _torch_private as private
from .._data.errors import NotApplicable
from .base import Choose, T

ABSENT = (
    "{0} did not come within {1:.0f} s to where the first plan is agreed on, so no plan is made. All ranks that train "
    "one model apply to it alike and take the same steps; {0} may have failed, or be slower than the timeout of its "
    "process group."
)


class Group:
    """The ranks that train one model; see `Ranks`.

    Args:
        members: their numbers in the default process group, in order. This process is one of them.

    A process may open several in turn, on all ranks in the same order.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members, self.own = members, private.own_rank()
        self._store = private.default_store()
        place = f"autockpt/{'-'.join(map(str, members))}"
        # Each rank counts for itself, and they open as many.
        self._place = f"{place}/{self._store.add(f'{place}/opened by {self.own}', 1)}"
        self._round = 0

    def agree(self, value: Any, choose: Choose[T]) -> T:
        number = self._round
        self.tell(value)
        self._round += 1
        keys = [self._key(number, rank) for rank in self.members]
        self._wait(keys)
        found = [msgspec.json.decode(self._store.get(key)) for key in keys]
        if number:  # all have come to this round, so nobody reads the one before it any more
            self._store.delete_key(self._key(number - 1, self.own))
        return choose(found)

    def tell(self, value: Any) -> None:
        self._store.set(self._key(self._round, self.own), msgspec.json.encode(value))

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        (here,) = private.parts([tensor])
        return here

    @contextmanager
    def gathered(self, module: nn.Module) -> Iterator[None]:
        unit = private.unit_of(module)
        brought = unit is not None and private.gather(unit)
        try:
            yield
        finally:
            if brought:
                private.let_go(unit)

    def _key(self, number: int, rank: int) -> str:
        return f"{self._place}/{number}/{rank}"

    def _wait(self, keys: list[str]) -> None:
        """Wait until all ranks have come, as long as the process group waits for anything.

        Raises:
            NotApplicable: one has not.
        """
        timeout = self._store.timeout
        until = time.monotonic() + timeout.total_seconds()
        for key in keys:
            left = timedelta(seconds=max(until - time.monotonic(), 0.001))
            try:
                self._store.wait([key], left)
            except RuntimeError as error:
                absent = [rank for rank, each in zip(self.members, keys, strict=True) if not self._store.check([each])]
                if not absent:
                    continue
                named = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
                raise NotApplicable(ABSENT.format(named, timeout.total_seconds())) from error
