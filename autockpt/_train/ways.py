"""How steps run, and the stash in which those wait, one after the other, that run under no plan.

step 1      step 2     step 3
recorded    timed      planned and rehearsed
├─ held ────┼─ held ───┼─ held ── its backward is over    then, or where something fails, the stash is let go
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from .. import _torch_private as private
from .._batches.batch import Batch, Forward
from .._compare.checks import ReplayChecks
from .._data.errors import NotApplicable, ProfilingError
from .._device import device_of
from .._ranks.refuse import refuse_sharded
from .._record.in_place import RecordedStep
from .._record.switches import CHECKPOINTING, Switches
from .._record.timed import TimedStep
from .._stash.base import NoRoom
from .._stash.held import HeldStashes
from .._stash.spilled_step import SpilledStep
from .._tell import spoken
from .._tell.said import STILL, Said
from .known import Ready
from .planned import Measured, PlannedWay
from .way import Installed, ObservedStep, Way

S = TypeVar("S", bound=SpilledStep)

MOST_UNRECORDED = 4
"""Steps that could not be recorded, after which it is said again that there is no plan."""


class SpilledWay(Way):
    """Runs a step whose saved tensors wait elsewhere, as all do under no plan.

    Args:
        step: what has them wait.
    """

    watches, tapes = True, False

    def __init__(self, step: SpilledStep) -> None:
        self._spilled = step

    @property
    def unhooked(self) -> bool:
        return self._spilled.unhooked

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        return True

    def forward(self, begins: Forward) -> Any:
        return self._spilled.forward(begins.arguments, begins.run, begins.name)

    def call(self, begins: Forward) -> Any:
        return self._spilled.call(begins.arguments, begins.run, begins.name)

    def backward_begins(self) -> None:
        self._spilled.backward_begins()

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        self._spilled.optimizer_stepped(optimizer)

    def pauses(self) -> None:
        """It ends if somebody ends it."""

    def end(self, arguments: object, *, cut: bool) -> ObservedStep:
        return ObservedStep()

    def drop(self) -> None:
        self._spilled.drop()


class TimedWay(SpilledWay):
    """Times a step besides."""

    def __init__(self, step: TimedStep) -> None:
        super().__init__(step)
        self._timed = step

    def end(self, arguments: object, *, cut: bool) -> ObservedStep:
        return ObservedStep(timing=self._timed.timing())


class RecordedWay(SpilledWay):
    """Records a step besides."""

    tapes = True

    def __init__(self, step: RecordedStep) -> None:
        super().__init__(step)
        self._recorded = step

    def end(self, arguments: object, *, cut: bool) -> ObservedStep:
        recorded = self._recorded.close(arguments, cut=cut)
        return ObservedStep(recorded=recorded, foreign=self._recorded.foreign)


class Ways:
    """Makes the ways in which the steps of one model run.

    Args:
        said: what the user was told.

    Attributes:
        stashes: where what they save waits.
        goes_on: whether a step goes on that has no room there, since other ranks wait for it.
        no_room: what such a step had none for; None where all had.
    """

    def __init__(self, said: Said) -> None:
        self.stashes, self._said, self._switches = HeldStashes(), said, Switches()
        self.goes_on = False
        self.no_room: NoRoom | None = None
        self._unrecorded = 0  # steps that should have been

    def spilled(self, begins: Forward) -> Way:
        """Only spill the step that begins so; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        return SpilledWay(self._kept_on(SpilledStep(begins.model, begins.device, begins.arguments, stash)))

    def timed(self, begins: Forward) -> Way:
        """Time it; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        self.stashes.hold(begins.device, stash)
        return TimedWay(self._kept_on(TimedStep(begins.model, begins.device, begins.arguments, stash)))

    def recorded(self, begins: Forward, end: Callable[[], None], *, is_first: bool) -> Way:
        """Record it, if that can be done now; else it is only spilled.

        Args:
            begins: its first forward.
            end: a method that ends what is recorded, as somebody else records.
            is_first: whether it is the first step of its loop.

        Raises:
            NotApplicable: it can never be.
            NoRoom: as for `SpilledStep`.
        """
        device = device_of(begins.device)
        if why := device.why_never() or device.why_not_now():
            raise NotApplicable(why)
        refuse_sharded(begins.model)
        self.switch_off(begins.model)
        stash = self.stashes.open(begins.device)
        try:
            step = RecordedStep(begins.model, begins.device, begins.arguments, stash, is_first=is_first)
        except ProfilingError as error:
            self._tell_unrecorded(error)
            spilled = SpilledStep(begins.model, begins.device, begins.arguments, stash)
            way: Way = SpilledWay(self._kept_on(spilled))
        else:
            private.yields_to_others(functools.partial(_ends, weakref.WeakMethod(end), weakref.ref(self.stashes)))
            spoken.recording(is_first=is_first)
            way = RecordedWay(self._kept_on(step))
        self.stashes.hold(begins.device, stash)  # not before: an earlier recording that ends lets go of what is held
        return way

    def planned(self, installed: Installed, ready: Ready | None, measured: Measured | None) -> Way:
        """Run it under the plan that is on the model, and let go of the stash where its rehearsal ends."""
        checks = ready.checks if ready is not None else None
        lets_go = functools.partial(_rehearsed, self.stashes, checks) if self.stashes.holding else None
        return PlannedWay(installed, ready, measured, lets_go)

    def _kept_on(self, step: S) -> S:
        """Have a step go on without room, where others wait for it."""
        if self.goes_on:
            step.spill.tell_no_room = self._without_room
        return step

    def _without_room(self, error: NoRoom) -> None:
        self.no_room = self.no_room or error

    def switch_off(self, model: nn.Module) -> None:
        """Switch off what recomputes regions by itself, and say so."""
        self._said.once(CHECKPOINTING, where=self._switches.off(model))

    def put_back(self) -> None:
        """Switch what was switched off on again."""
        self._switches.put_back()

    def _tell_unrecorded(self, error: ProfilingError) -> None:
        """Say why a step is not recorded, and again where there have been some."""
        self._said.once(f"this step is spilled and not recorded, a later one will be: {error}")
        self._unrecorded += 1
        if self._unrecorded == MOST_UNRECORDED:
            profiler = private.foreign_profiler()
            why = f"{profiler}, not of autockpt, runs around them, and a process has one" if profiler else f"{error}"
            self._said.once(STILL.format(self._unrecorded, why))


def _ends(method: weakref.WeakMethod[Callable[[], None]], stashes: weakref.ref[HeldStashes]) -> None:
    """End a recording, as far as that can be, and let go of what is held: another recording begins."""
    if (end := method()) is not None and (held := stashes()) is not None:
        end()
        held.let_go()


def _rehearsed(stashes: HeldStashes, checks: ReplayChecks | None) -> None:
    """Let go of stashes; where a plan was found at fault, the next one is rehearsed as well."""
    if checks is None or not checks.findings.at_fault:
        stashes.let_go()
