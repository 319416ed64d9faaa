"""Stamps of the places that a running step passes, for the seconds between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _torch_private as private
from .._device import Clock
from .._device.tape import storage_address


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
