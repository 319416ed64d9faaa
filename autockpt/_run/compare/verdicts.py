"""Verdicts of a device that are read in a later step: no step waits for a device that finds no difference.

    step n        replay, compared on the device: verdict ──▶ host    backward and the optimizer go on
    step n + 1    replay of the same segment: read                    a difference is an error here, in backward
    step n + 2    any replay: read, where that segment had none

The last ones before training ends are read by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..._torch.devices.arrival import Arrival

_MOST_STEPS = 2
"""After so many steps a verdict is read by the replay of any segment."""


class Compared(NamedTuple):
    """A saved tensor that was compared.

    Attributes:
        key: the call that saved it.
        dtype, shape: as in PyTorch.
    """

    key: str
    dtype: torch.dtype
    shape: torch.Size


class Late(NamedTuple):
    """What a replay of an earlier step made differently.

    Attributes:
        segment: number of the segment.
        tensors: the tensors, in the order of their saves.
    """

    segment: int
    tensors: Sequence[Compared]


@dataclass(frozen=True, slots=True, eq=False)
class _Unread:
    turn: int
    segment: int
    tensors: Sequence[Compared]
    arrival: Arrival


class Verdicts:
    """Verdicts of one plan that are not read yet.

    Attributes:
        turn: number of the forward that began last.
        unread: the verdicts, from the oldest on.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.unread: list[_Unread] = []

    def add(self, segment: int, tensors: Sequence[Compared], alike: Tensor) -> None:
        """Have a verdict on its way.

        Args:
            segment: number of the segment.
            tensors: what was compared.
            alike: for each of them whether forward and replay made the same; a tensor on their device.
        """
        self.unread.append(_Unread(self.turn, segment, tensors, Arrival(alike)))

    def read(self, segment: int) -> Late | None:
        """Return what a replay of an earlier step made differently, as far as a replay of `segment` is to tell it."""
        for each in [each for each in self.unread if self._is_due(each, segment)]:
            try:
                self.unread.remove(each)
            except ValueError:  # the thread of another device has read it
                continue
            if wrong := _unlike(each.tensors, each.arrival.read()):
                return Late(each.segment, wrong)
        return None

    def _is_due(self, verdict: _Unread, segment: int) -> bool:
        age = self.turn - verdict.turn
        return age >= _MOST_STEPS or (age > 0 and verdict.segment == segment)


def _unlike(tensors: Sequence[Compared], alike: Iterable[bool]) -> list[Compared]:
    return [each for each, same in zip(tensors, alike, strict=True) if not same]
