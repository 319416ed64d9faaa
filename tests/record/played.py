"""A CPU's allocations, played as CUDA would have reported them.

blocks       rounded to 512 bytes, and some handed out whole, larger than what was asked for
workspaces   some operators and some of backward allocate once, and keep
marks        numbered out of turn, as where threads and finalizers write them down
the host     runs ahead: no stamp can be read before the run is over
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from tests.doors import AllocatorTape, Clock, Cpu, Device, HostClock, planned_device, record_recorded, recorder
from tests.doors import rounded as rounded_on

__all__ = ["WORKSPACES", "WORKSPACE_BYTES", "as_cuda", "recording_on", "rounded"]

WORKSPACES, WORKSPACE_BYTES = 5, 8 * 2**20

UNSPLIT_SHARE = 0.3
"""Of the blocks, those that are not split."""


def rounded(size: int) -> int:
    """The block for so many bytes."""
    return rounded_on(planned_device(), size)


class _PlayedTape(AllocatorTape):
    """A tape whose device reports as CUDA does."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, grain_bytes=planned_device().grain_bytes)
        self._random = random.Random(0)
        self._late: int | None = None  # a number that another thread has drawn, and not written down yet

    def mark(self) -> int:
        if self._late is not None:
            number, self._late = self._late, None
        else:
            number = next(self._numbers)
            if self._random.random() < 0.2:
                self._late, number = number, next(self._numbers)
        self._addresses[number] = torch.UntypedStorage(self._marker_bytes(number)).data_ptr()
        return number

    def _with_marks(self, allocations: list[Any]) -> Any:
        own = {self._marker_bytes(number): pointer for number, pointer in self._addresses.items()}
        handed: dict[int, int] = {}
        played, places = [], set(self._random.sample(range(len(allocations) // 4, len(allocations)), WORKSPACES))
        for place, (pointer, change, kind, index) in enumerate(allocations):
            if own.get(abs(change)) != pointer:
                if change > 0:
                    whole = self._random.random() < UNSPLIT_SHARE
                    handed[pointer] = rounded(change) + planned_device().grain_bytes * (
                        whole and self._random.randint(1, 2000)
                    )
                    change = handed[pointer]
                else:
                    change = -handed.pop(pointer, rounded(-change))
            played.append((pointer, change, kind, index))
            if place in places:
                played.append((-place, WORKSPACE_BYTES, kind, index))
        return super()._with_marks(played)


class _LateClock(HostClock):
    """Stamps are objects that say nothing before they are asked for all together."""

    def stamp(self) -> object:
        return _Stamp(super().stamp())

    def forget(self, since: object) -> None:
        assert isinstance(since, _Stamp)

    def seconds(self, stamps: list[object]) -> list[float]:
        return super().seconds([stamp.reading for stamp in stamps])  # type: ignore[attr-defined]


class _Stamp:
    def __init__(self, reading: object) -> None:
        self.reading = reading


class _PlayedDevice(Cpu):
    """The CPU, whose tape and clock are those of a device that the host runs ahead of."""

    grain_bytes = planned_device().grain_bytes

    def tape(self) -> AllocatorTape:
        return _PlayedTape(self.at)

    def clock(self) -> Clock:
        return _LateClock()


@contextlib.contextmanager
def recording_on(device: Device) -> Iterator[None]:
    """Record steps on a device of the tests' own."""
    with (
        mock.patch.object(recorder, "device_of", lambda _: device),
        mock.patch.object(record_recorded, "device_of", lambda _: device),
    ):
        yield


@contextlib.contextmanager
def as_cuda() -> Iterator[None]:
    """Record steps on the CPU from what CUDA would have reported of them."""
    with recording_on(_PlayedDevice()):
        yield
