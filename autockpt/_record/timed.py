"""The user's own step, timed while it trains: stamps give the shares, and what spilling took is taken off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch_private as private
from .._calls.roots import WHOLE, roots
from .._device import device_of
from .._stash.base import Stash
from .._stash.spilled_step import SpilledStep
from .._watch.marks import SeenStep
from .._watch.routing import patched_forwards, routed_functions
from .._watch.stamps import Stamps
from .timing import STAMPED, Place, Seconds

SPILLING = "spilling"
"""Between two such stamps a saved tensor was written or read back, which a plain step does not do."""

HEAD_START_SECONDS = 5e-4
"""How long a device waits after each, so that what runs until the next is launched by then. With it an H100's timed
step of GPT-2 small took 5 % more than its plain one, and 32 % without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a timed step passed which places; nothing where its backward did not come to an end.

    Attributes:
        kinds: of the places, in order.
        readings: when, in seconds.
    """

    kinds: tuple[str, ...] = ()
    readings: tuple[float, ...] = ()

    def seconds(self, run: SeenStep, recorded: Seconds) -> Seconds:
        """Return when what happened in the plain step.

        Args:
            run: a recorded step.
            recorded: what that one tells itself, of which only shares count where this step did something else.
        """
        spent, began = 0.0, 0.0
        places: list[tuple[str, float]] = []
        spilling = False
        for kind, reading in zip(self.kinds, self.readings, strict=True):
            if kind == SPILLING:
                spent += reading - began if spilling else 0.0
                spilling, began = not spilling, reading
            else:
                places.append((kind, reading - spent))
        total = places[-1][1]
        places = [(kind, reading) for kind, reading in places if kind in STAMPED]
        expected: list[Place] = [(mark.kind, mark.index) for mark in run.in_order() if mark.kind in STAMPED]
        if [kind for kind, _ in places] != [kind for kind, _ in expected]:
            return recorded.scaled(total / recorded.plain_seconds if recorded.plain_seconds else 1.0)
        at = {place: reading for place, (_, reading) in zip(expected, places, strict=True)}
        return Seconds(at=at, ops=recorded.ops, plain_seconds=total)


class TimedStep(SpilledStep):
    """A step of the user's that is stamped where a recorded one has its markers; see `SpilledStep`."""

    def __init__(
        self, model: torch.nn.Module, device: torch.device, arguments: object, stash: Stash | None = None
    ) -> None:
        super().__init__(model, device, arguments, stash)
        self._clock = device_of(device).clock()
        self._stamps = Stamps(self._clock, model)
        self._running = False  # whether a backward is

    def forward(self, arguments: object, run: Callable[[], Any], name: str = WHOLE) -> Any:
        functions, is_first = routed_functions(self._stamps.on_function), not self._stamps.kinds
        if is_first and name != WHOLE:
            self._stamps.add("enter")  # of all of them together; see `Observer.on_call`
        try:
            with patched_forwards(self.model, self._stamps.on_call, in_place=True), functions:
                return super().forward(arguments, lambda: self.call(arguments, run, name), name)
        finally:
            if name != WHOLE or not is_first:
                self._stamps.add("exit")  # of the first one, which goes on

    def call(self, arguments: object, run: Callable[[], Any], name: str = WHOLE) -> Any:
        return self._stamps.on_call(name, roots(self.model)[name], arguments, run)

    def backward_begins(self) -> None:
        if "forward_end" not in self._stamps.kinds:
            self._stamps.add("forward_end")
        self._running = True
        self._as_backward_ends(self._backward_over)

    def backward_reads(self) -> None:
        if not self._running:
            self.backward_begins()

    def _backward_over(self) -> None:
        self._running = False
        self._stamps.add("backward_end")

    def timing(self) -> Timing:
        """Return what the stamps tell; nothing where its backward did not come to an end."""
        if "backward_end" not in self._stamps.kinds:
            return Timing()
        return Timing(kinds=tuple(self._stamps.kinds), readings=tuple(self._clock.seconds(self._stamps.readings)))

    @private.never_compiled
    def _pack(self, tensor: torch.Tensor) -> Any:
        self._stamps.on_save(tensor)
        return self._spilling(super()._pack, tensor)

    @private.never_compiled
    def _unpack(self, held: Any) -> torch.Tensor:
        tensor: torch.Tensor = self._spilling(super()._unpack, held)
        return tensor

    @private.never_compiled
    def _spilling(self, work: Callable[[Any], Any], held: Any) -> Any:
        self._stamps.add(SPILLING)
        try:
            return work(held)
        finally:
            self._clock.get_ahead(HEAD_START_SECONDS)  # the device was idle while it spilled: what follows would count
            self._stamps.add(SPILLING)
