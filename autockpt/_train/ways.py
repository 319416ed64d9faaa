"""The ways in which steps run, and the stash where their saved tensors wait. Steps use the same stash in turn.

step 1      step 2     step 3
recorded    timed      planned and rehearsed
├─ held ────┼─ held ───┼─ held ── its backward is over    the stash is released then, or where something fails
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
from .._stash.waiting import Waiting
from .._tell import spoken
from .._tell.said import STILL, Said
from .known import Ready
from .planned import Measured, PlannedWay
from .way import Installed, ObservedStep, Way

S = TypeVar("S", bound=SpilledStep)

MOST_UNRECORDED = 4
"""After this many steps that could not be recorded, a second warning says that there is still no plan."""


class SpilledWay(Way):
    """Runs a step without a plan: its saved tensors wait elsewhere.

    Args:
        step: spills them.
    """

    watches, tapes = True, False

    def __init__(self, step: SpilledStep) -> None:
        self._spilled = step

    @property
    def unhooked(self) -> bool:
        return self._spilled.unhooked

    @property
    def reached(self) -> bool:
        return self._spilled.reached

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
        """Do nothing: the governor ends it."""

    def end(self, arguments: object, *, cut: bool) -> ObservedStep:
        self._spilled.spill.errors.tell()
        return ObservedStep()

    def drop(self) -> None:
        self._spilled.drop()


class TimedWay(SpilledWay):
    """Runs a spilled step and times it."""

    def __init__(self, step: TimedStep) -> None:
        super().__init__(step)
        self._timed = step

    def end(self, arguments: object, *, cut: bool) -> ObservedStep:
        return ObservedStep(timing=self._timed.timing())


class RecordedWay(SpilledWay):
    """Runs a spilled step and records it."""

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
        said: gives each warning once.
        summed: whether ranks are to compare what calls are given in recorded steps.

    Attributes:
        stashes: where their saved tensors wait.
        goes_on: whether a step goes on if its stash has no room, since other ranks wait for it.
        no_room: the first error of such a step; None if there was none.
    """

    def __init__(self, said: Said, *, summed: bool) -> None:
        self.stashes, self._said, self._switches = HeldStashes(), said, Switches()
        self.goes_on, self._summed = False, summed
        self.no_room: NoRoom | None = None
        self._waiting: Waiting | None = None  # what the last step that was spilled has put elsewhere
        self._unrecorded = 0  # steps that should have been recorded and could not be

    def spilled(self, begins: Forward) -> Way:
        """Return a way that only spills the step that begins; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        return SpilledWay(self._kept_on(SpilledStep(begins.model, begins.device, begins.arguments, stash)))

    def timed(self, begins: Forward) -> Way:
        """Return a way that times the step; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        self.stashes.hold(begins.device, stash)
        return TimedWay(self._kept_on(TimedStep(begins.model, begins.device, begins.arguments, stash)))

    def recorded(self, begins: Forward, end: Callable[[], None], *, is_first: bool, changed: str) -> Way:
        """Return a way that records the step, or only spills it if it cannot be recorded now.

        Args:
            begins: the step's first forward.
            end: a method that ends the recording when somebody else starts to record.
            is_first: whether this is the first step of its loop.
            changed: how the model has changed since the last recorded step; empty if it has not.

        Raises:
            NotApplicable: no step of this model can be recorded here, now or later.
            NoRoom: as for `SpilledStep`.
        """
        device = device_of(begins.device)
        if why := device.why_never() or device.why_not_now():
            raise NotApplicable(why)
        refuse_sharded(begins.model)
        self.switch_off(begins.model)
        stash = self.stashes.open(begins.device)
        try:
            given = begins.model, begins.device, begins.arguments, stash
            step = RecordedStep(*given, before=self._waiting, is_first=is_first, summed=self._summed)
        except ProfilingError as error:
            self._tell_unrecorded(error)
            spilled = SpilledStep(begins.model, begins.device, begins.arguments, stash)
            way: Way = SpilledWay(self._kept_on(spilled))
        else:
            private.yields_to_others(functools.partial(_ends, weakref.WeakMethod(end), weakref.ref(self.stashes)))
            spoken.recording(is_first=is_first, changed=changed)
            way = RecordedWay(self._kept_on(step))
        self.stashes.hold(begins.device, stash)  # not before: ending another recording releases what is held
        return way

    def planned(self, installed: Installed, ready: Ready | None, measured: Measured | None) -> Way:
        """Return a way under the plan that is on the model. It releases the stash when the plan's rehearsal ends."""
        checks = ready.checks if ready is not None else None
        lets_go = functools.partial(_rehearsed, self.stashes, checks) if self.stashes.holding else None
        return PlannedWay(installed, ready, measured, lets_go)

    def _kept_on(self, step: S) -> S:
        """Let a step go on when its stash has no room, if other ranks wait for it."""
        self._waiting = step.spill.waiting
        if self.goes_on:
            step.spill.tell_no_room = self._without_room
        return step

    def _without_room(self, error: NoRoom) -> None:
        self.no_room = self.no_room or error

    def switch_off(self, model: nn.Module) -> None:
        """Switch off the model's own gradient checkpointing, with a warning."""
        self._said.once(CHECKPOINTING, where=self._switches.off(model))

    def put_back(self) -> None:
        """Switch on again what was switched off."""
        self._switches.put_back()

    def _tell_unrecorded(self, error: ProfilingError) -> None:
        """Warn why a step is not recorded; after `MOST_UNRECORDED` such steps, warn again."""
        self._said.once(f"this step is spilled and not recorded, a later one will be: {error}")
        self._unrecorded += 1
        if self._unrecorded == MOST_UNRECORDED:
            profiler = private.foreign_profiler()
            why = f"{profiler}, not of autockpt, runs around them, and a process has one" if profiler else f"{error}"
            self._said.once(STILL.format(self._unrecorded, why))


def _ends(method: weakref.WeakMethod[Callable[[], None]], stashes: weakref.ref[HeldStashes]) -> None:
    """End a recording if it can be ended, and release the stashes: another recording begins."""
    if (end := method()) is not None and (held := stashes()) is not None:
        end()
        held.let_go()


def _rehearsed(stashes: HeldStashes, checks: ReplayChecks | None) -> None:
    """Release the stashes, unless a replay was at fault: then another plan follows, and is rehearsed with them."""
    if checks is None or not checks.findings.at_fault:
        stashes.let_go()
