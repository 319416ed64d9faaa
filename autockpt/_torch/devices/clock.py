"""Clocks that read the time of a running step without waiting for the device."""

from __future__ import annotations

import time
from typing import cast

import torch


class Clock:
    """Reads the time of a run. By default a reading is a number of seconds, and there is no device to keep waiting.

    Attributes:
        behind: whether the device works behind a host that has seconds of its own.
    """

    behind = False

    def stamp(self) -> object:
        """Return a reading."""
        raise NotImplementedError

    def get_ahead(self, seconds: float) -> None:
        """Make the device wait for `seconds` while the host goes on, so that it need not wait for the host later."""

    def drain(self) -> None:
        """Wait until nothing is queued for the device."""

    def forget(self, since: object) -> None:
        """Leave the time since a reading out of all later readings: it was the recorder's own work."""

    def seconds(self, stamps: list[object]) -> list[float]:
        """Turn readings into seconds since the first one."""
        readings = cast("list[float]", stamps)
        return [reading - readings[0] for reading in readings]


class HostClock(Clock):
    """The host's clock, for operators that run on the host.

    If torch uses one thread, it counts only that thread's processor time, not what else the machine does.
    """

    def __init__(self) -> None:
        self._now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        self._forgotten = 0.0

    def stamp(self) -> object:
        return self._now() - self._forgotten

    def forget(self, since: object) -> None:
        self._forgotten = self._now() - cast("float", since)
