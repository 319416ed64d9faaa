"""Clocks that read the time of a running step without waiting for the device, and stamps of the places it passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import torch

from .. import _torch_private as private
from .tape import storage_address


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


class CudaClock(Clock):
    """Events in the current stream: the device's own time, read only after the run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stamp(self) -> object:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def get_ahead(self, seconds: float) -> None:
        private.sleep_on(self._device, seconds)

    def seconds(self, stamps: list[object]) -> list[float]:
        events = cast("list[torch.cuda.Event]", stamps)
        torch.cuda.synchronize(self._device)
        return [max(events[0].elapsed_time(event), 0.0) / 1e3 for event in events]


def clock_of(device: torch.device) -> Clock:
    """Return the clock that is right for `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


class Stamps:
    """What a clock said, place by place; `on_call` and `on_function` are routed to.

    Attributes:
        kinds: of the places, in order.
        readings: what the clock said there; `Clock.seconds` reads them.
    """

    def __init__(self, clock: Clock, model: torch.nn.Module) -> None:
        self.kinds: list[str] = []
        self.readings: list[object] = []
        self._clock, self._open = clock, 0
        self._static = {storage_address(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def add(self, kind: str) -> None:
        """Stamp a place."""
        self.kinds.append(kind)
        self.readings.append(self._clock.stamp())

    def on_save(self, tensor: torch.Tensor) -> None:
        """Stamp where a tensor is saved."""
        with private.no_torch_functions():
            if storage_address(tensor) not in self._static:
                self.add("pack")

    def on_call(self, name: str, module: torch.nn.Module, arguments: object, run: Callable[[], Any]) -> Any:
        """Stamp where a call begins and ends."""
        if not torch.is_grad_enabled() or private.transforms_active():
            return run()
        self._open += 1
        self.add("enter")
        try:
            return run()
        finally:
            self.add("exit")
            self._open -= 1

    def on_function(self, name: str, arguments: object, run: Callable[[], Any]) -> Any:
        """Stamp where a torch function that a call makes begins and ends."""
        if not self._open or private.transforms_active():
            return run()
        self.add("begin")
        try:
            return run()
        finally:
            self.add("end")
