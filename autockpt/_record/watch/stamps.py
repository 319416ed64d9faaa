"""Stamps of the places that a running step passes, for the seconds between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ..._calls.own_errors import OwnErrors
from ..._torch import private
from ..._torch.devices import Clock
from ..._torch.devices.tape import storage_address
from .gathered import Gathered
from .static import StaticStorages


class Stamps:
    """What a clock said, place by place; `on_call` and `on_function` are routed to.

    Attributes:
        kinds: of the places, in order.
        readings: what the clock said there; `Clock.seconds` reads them.
        host: seconds of the host there, less those that stamps take; empty where the device is the host.
        streams: in which calls began, where the device works behind the host.
        errors: where errors of its own work wait.
    """

    def __init__(self, clock: Clock, model: torch.nn.Module, errors: OwnErrors) -> None:
        self.kinds: list[str] = []
        self.readings: list[object] = []
        self.host: list[float] = []
        self.streams: set[private.StreamNumbers | None] = set()
        self.errors = errors
        self._clock = clock
        self._static = StaticStorages(model, storage_address)
        self._gathered = Gathered(model)
        self._inside: list[str] = []  # calls that are open
        self._own_seconds = 0.0  # of stamps, and of waits for the device

    def add(self, kind: str) -> None:
        """Stamp a place."""
        if not self._clock.behind:
            self.kinds.append(kind)
            self.readings.append(self._clock.stamp())
            return
        began = time.perf_counter()
        self.host.append(began - self._own_seconds)
        self.kinds.append(kind)
        self.readings.append(self._clock.stamp())
        if kind == "enter":
            self.streams.add(private.current_stream())
        self._own_seconds += time.perf_counter() - began

    def drain(self) -> None:
        """Wait for the device, so that its queue does not keep the host waiting; that counts as no time of the host."""
        began = time.perf_counter()
        self._clock.drain()
        self._own_seconds += time.perf_counter() - began

    def on_save(self, tensor: torch.Tensor) -> None:
        """Stamp where a tensor is saved."""
        self.errors.own(self._save, tensor)

    def _save(self, tensor: torch.Tensor) -> None:
        with private.no_torch_functions():
            for each in private.inside(tensor):
                if not self._static.has(storage_address(each)) and not self._gathered.has(each):
                    self.add("pack")

    def on_call(self, name: str, module: torch.nn.Module, arguments: object, run: Callable[[], Any]) -> Any:
        """Stamp where a call begins and ends."""
        if not torch.is_grad_enabled() or private.transforms_active():
            return run()
        self._inside.append(name)
        self.add("enter")
        try:
            return run()
        finally:
            self.add("exit")
            self._inside.pop()

    def on_function(self, name: str, arguments: object, run: Callable[[], Any]) -> Any:
        """Stamp where a torch function that a call makes begins and ends."""
        if not self._inside or private.transforms_active() or self._gathered.around(self._inside[-1]):
            return run()
        self.add("begin")
        try:
            return run()
        finally:
            self.add("end")
