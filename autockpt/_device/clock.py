"""Clocks that read the time of a running step without waiting for the device."""

from __future__ import annotations

import time
from typing import cast

import torch


class Clock:
    """Reads the time of a run, by default as a number of seconds, with no device that waits."""

    def stamp(self) -> object:
        """Return a reading."""
        raise NotImplementedError

    def get_ahead(self, seconds: float) -> None:
        """Let the device wait for so long, while the host goes on: so it never waits for the host afterwards."""

    def forget(self, since: object) -> None:
        """Leave what the host did since a reading out of all that follow: it was the recorder's own work."""

    def seconds(self, stamps: list[object]) -> list[float]:
        """Turn readings into seconds since the first."""
        readings = cast("list[float]", stamps)
        return [reading - readings[0] for reading in readings]


class HostClock(Clock):
    """The host's clock: right where operators run on the host, as on a CPU.

    Where they run in one thread it counts what that thread runs, and not what else the machine does meanwhile.
    """

    def __init__(self) -> None:
        self._now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        self._forgotten = 0.0

    def stamp(self) -> object:
        return self._now() - self._forgotten

    def forget(self, since: object) -> None:
        self._forgotten = self._now() - cast("float", since)
