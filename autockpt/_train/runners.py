"""Runners of steps without a plan, and the stash where their saved tensors wait. Steps use the same stash in turn.

step 1      step 2     step 3
recorded    timed      planned and rehearsed
├─ held ────┼─ held ───┼─ held ── its backward is over    the stash is released then, or where something fails
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import nn
from torch.optim import Optimizer

from .. import _torch_private as private
from .._batches.batch import Batch, Forward
from .._compare.checks import ReplayChecks
from .._data.errors import NotApplicable, ProfilingError
from .._device import device_of
from .._install.installation import Installation
from .._ranks.refuse import refuse_sharded
from .._record.in_place import RecordedStep
from .._record.switches import CHECKPOINTING, Switches
from .._record.timed import TimedStep
from .._stash.base import NoRoom
from .._stash.held import HeldStashes
from .._stash.spilled_step import SpilledStep
from .._stash.waiting import Waiting
from .._tell import spoken
from .._tell.said import STILL, WarnOnce
from .known import Ready
from .planned import Measured, PlannedRunner
from .state import Ran
from .step import StepRunner

S = TypeVar("S", bound=SpilledStep)

MOST_UNRECORDED = 4
"""After this many steps that could not be recorded, a second warning says that there is still no plan."""


class SpilledRunner(StepRunner, Generic[S]):
    """Runs a step without a plan: its saved tensors wait elsewhere.

    Args:
        step: spills them.
    """

    watches, tapes = True, False

    def __init__(self, step: S) -> None:
        self._step = step

    @property
    def unhooked(self) -> bool:
        return self._step.unhooked

    @property
    def reached(self) -> bool:
        return self._step.reached

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        return True

    def forward(self, begins: Forward) -> Any:
        return self._step.forward(begins.arguments, begins.run, begins.name)

    def call(self, begins: Forward) -> Any:
        return self._step.call(begins.arguments, begins.run, begins.name)

    def backward_begins(self) -> None:
        self._step.backward_begins()

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        self._step.optimizer_stepped(optimizer)

    def pauses(self) -> None:
        """Do nothing: the governor ends it."""

    def end(self, arguments: object, *, cut: bool) -> Ran:
        self._step.spill.errors.tell()
        return Ran()

    def drop(self) -> None:
        self._step.drop()


class TimedRunner(SpilledRunner[TimedStep]):
    """Runs a spilled step and times it."""

    def end(self, arguments: object, *, cut: bool) -> Ran:
        return Ran(timing=self._step.timing())


class RecordedRunner(SpilledRunner[RecordedStep]):
    """Runs a spilled step and records it."""

    tapes = True

    def end(self, arguments: object, *, cut: bool) -> Ran:
        recorded = self._step.close(arguments, cut=cut)
        return Ran(recorded=recorded, foreign=self._step.foreign)


class Runners:
    """Makes the runners of one model's steps.

    Args:
        warn: gives each warning once.
        end: a method that ends a recording when somebody else starts to record.
        summed: whether ranks are to compare what calls are given in recorded steps.

    Attributes:
        stashes: where their saved tensors wait.
        goes_on: whether a step goes on if its stash has no room, since other ranks wait for it.
        no_room: the first error of such a step; None if there was none.
    """

    def __init__(self, warn: WarnOnce, end: Callable[[], None], *, summed: bool) -> None:
        self.stashes, self._warn, self._switches = HeldStashes(), warn, Switches()
        self.goes_on, self._summed, self._end = False, summed, weakref.WeakMethod(end)
        self.no_room: NoRoom | None = None
        self._waiting: Waiting | None = None  # what the last step that was spilled has put elsewhere
        self._unrecorded = 0  # steps that should have been recorded and could not be

    def spilled(self, begins: Forward) -> StepRunner:
        """Return a runner that only spills the step that begins; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        return SpilledRunner(self._kept_on(SpilledStep(begins.model, begins.device, begins.arguments, stash)))

    def timed(self, begins: Forward) -> StepRunner:
        """Return a runner that times the step; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        self.stashes.hold(begins.device, stash)
        return TimedRunner(self._kept_on(TimedStep(begins.model, begins.device, begins.arguments, stash)))

    def recorded(self, begins: Forward, *, is_first: bool, changed: str) -> StepRunner:
        """Return a runner that records the step, or only spills it if it cannot be recorded now.

        Args:
            begins: the step's first forward.
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
            runner: StepRunner = SpilledRunner(self._kept_on(spilled))
        else:
            private.yields_to_others(functools.partial(_ends, self._end, weakref.ref(self.stashes)))
            spoken.recording(is_first=is_first, changed=changed)
            runner = RecordedRunner(self._kept_on(step))
        self.stashes.hold(begins.device, stash)  # not before: ending another recording releases what is held
        return runner

    def planned(self, installed: Installation, ready: Ready | None, measured: Measured | None) -> StepRunner:
        """Return a runner under the plan that is on the model. It releases the stash when the plan's rehearsal ends."""
        checks = ready.checks if ready is not None else None
        lets_go = functools.partial(_rehearsed, self.stashes, checks) if self.stashes.holding else None
        return PlannedRunner(installed, ready, measured, lets_go)

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
        self._warn.once(CHECKPOINTING, where=self._switches.off(model))

    def put_back(self) -> None:
        """Switch on again what was switched off."""
        self._switches.put_back()

    def _tell_unrecorded(self, error: ProfilingError) -> None:
        """Warn why a step is not recorded; after `MOST_UNRECORDED` such steps, warn again."""
        self._warn.once(f"this step is spilled and not recorded, a later one will be: {error}")
        self._unrecorded += 1
        if self._unrecorded == MOST_UNRECORDED:
            profiler = private.foreign_profiler()
            why = f"{profiler}, not of autockpt, runs around them, and a process has one" if profiler else f"{error}"
            self._warn.once(STILL.format(self._unrecorded, why))


def _ends(method: weakref.WeakMethod[Callable[[], None]], stashes: weakref.ref[HeldStashes]) -> None:
    """End a recording if it can be ended, and release the stashes: another recording begins."""
    if (end := method()) is not None and (held := stashes()) is not None:
        end()
        held.let_go()


def _rehearsed(stashes: HeldStashes, checks: ReplayChecks | None) -> None:
    """Release the stashes, unless a replay was at fault: then another plan follows, and is rehearsed with them."""
    if checks is None or not checks.findings.at_fault:
        stashes.let_go()
