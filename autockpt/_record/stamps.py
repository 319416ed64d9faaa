"""Stamps at the places that a forward passes: the same ones at which a recorded step has its markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _torch_private as private
from .clocks import Clock


class Stamps:
    """What a clock said, place by place; `on_call` and `on_function` are routed to.

    Attributes:
        kinds: of the places, in order.
        readings: what the clock said there; `Clock.seconds` reads them.
    """

    def __init__(self, clock: Clock) -> None:
        self.kinds: list[str] = []
        self.readings: list[object] = []
        self._clock, self._open = clock, 0

    def add(self, kind: str) -> None:
        """Stamp a place."""
        self.kinds.append(kind)
        self.readings.append(self._clock.stamp())

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
