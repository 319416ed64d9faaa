"""Runners of steps: spilled, timed or recorded without a plan, or under one.

step 1      step 2     step 3
recorded    timed      planned and rehearsed
├─ held ────┼─ held ───┼─ held ── its backward is over    the stash is released then, or where something fails

Steps without a plan use the same stash in turn. A planned step is measured if the device's allocator keeps statistics:

    began     allocated 30, peak 50        new bytes: 30 less what the plan predicts as a step begins
    ...       the planned step
    ended     allocated 28, peak 62        the peak has risen, so 62 is that of the step; else the step stayed below 50

The statistics belong to the user, so they are never reset. The peak is read as soon as the step is over: what the loop
does next (a validation pass, tensors of its own) is not part of the step.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from torch import nn
from torch.optim import Optimizer

from .._data.errors import NotApplicable, ProfilingError
from .._ranks.refuse import refuse_sharded
from .._record.aside.switches import CHECKPOINTING, Switches
from .._record.in_place import RecordedStep
from .._record.seconds.timed import TimedStep
from .._run.compare.checks import ReplayChecks
from .._run.frames.thread import numbering_on
from .._run.patch.installation import Installation
from .._stash.base import NoRoom
from .._stash.held import HeldStashes
from .._stash.spilled_step import SpilledStep
from .._stash.waiting import Waiting
from .._torch import private
from .._torch.devices import Device, Level, device_of
from .batches.batch import Batch, Forward
from .deciding.known import Ready
from .deciding.state import Ran
from .messages import spoken
from .messages.said import STILL, WarnOnce
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


class PlannedRunner(StepRunner):
    """Runs a step under the plan that is on the model.

    Args:
        installed: that plan.
        ready: that plan with the kind of step that it is for; None if no plan could be put on.
        measured: measures the step; None not to measure.
        after_backward: called when each backward of the step has ended, or with the step; None for nothing.
    """

    __slots__ = ("_after_backward", "_backward_began", "_carried", "_installed", "_measured", "_over", "_ready")

    watches = tapes = unhooked = reached = False

    def __init__(
        self,
        installed: Installation,
        ready: Ready | None,
        measured: Measured | None = None,
        after_backward: Callable[[], None] | None = None,
    ) -> None:
        self._installed, self._ready, self._measured, self._after_backward = installed, ready, measured, after_backward
        self._carried: tuple[dict[str, int], set[int]] = {}, set()
        self._backward_began = False  # whether a backward has begun
        self._over = False  # whether the step may be over: an optimizer has stepped, or the model does something else

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        return self._ready is not None and self._ready.covers(batches, gradient_bytes)

    def forward(self, begins: Forward) -> Any:
        self._over = False
        with numbering_on(self._carried):  # calls are numbered on from the step's earlier forwards
            return self._installed.forward(begins)

    def call(self, begins: Forward) -> Any:
        return self._installed.forward(begins)

    def backward_begins(self) -> None:
        self._backward_began, self._over = True, False
        if self._after_backward is not None:
            private.after_backward(self._after_backward)

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        self._may_be_over()

    def pauses(self) -> None:
        if not self._over:  # else the peak of a validation pass would count
            self._may_be_over()

    def _may_be_over(self) -> None:
        self._over = self._backward_began
        if self._backward_began and self._measured is not None:
            self._measured.ends()

    def end(self, arguments: object, *, cut: bool) -> Ran:
        # A backward that began elsewhere than at an output of the model was not seen.
        if self._after_backward is not None and not self._backward_began:
            self._after_backward()
        if self._measured is None:
            return Ran(ready=self._ready)
        peak_bytes, new_bytes = self._measured.peak_bytes(), self._measured.new_bytes
        return Ran(ready=self._ready, peak_bytes=peak_bytes, new_bytes=new_bytes)

    def drop(self) -> None:
        """Do nothing: this runner holds nothing."""


class Measured:
    """Measures one planned step, which begins now.

    Args:
        device: the device that it runs on.
        ready: the plan that it runs under.
        held_bytes: bytes that are allocated as it begins but freed within it: gradients, gathered parameters.

    Attributes:
        new_bytes: bytes allocated as it begins that its plan does not count on.
    """

    def __init__(self, device: Device, ready: Ready, held_bytes: int) -> None:
        self._device, self._began = device, device.level()
        self._ended: Level | None = None
        self.new_bytes = 0
        if self._began is not None:
            self.new_bytes = max(self._began.allocated_bytes - ready.begin_bytes - held_bytes, 0)

    def ends(self) -> None:
        """Note that the step may be over."""
        if self._began is not None:
            self._ended = self._device.level()

    def peak_bytes(self) -> int | None:
        """Return the step's peak; None if the device does not tell, or if an earlier peak was as high."""
        if self._ended is None:
            self.ends()
        if self._began is None or self._ended is None or self._ended.peak_bytes <= self._began.peak_bytes:
            return None
        return self._ended.peak_bytes


class Runners:
    """Makes the runners of one model's steps.

    Args:
        warn: gives each warning once.
        end: a method that ends a recording when somebody else starts to record.
        summed: whether ranks are to compare what calls are given in recorded steps.

    Attributes:
        stashes: where their saved tensors wait.
        tell_no_room: called if a stash has no room, and the step goes on; None to raise that.
    """

    def __init__(self, warn: WarnOnce, end: Callable[[], None], *, summed: bool) -> None:
        self.stashes, self._warn, self._switches = HeldStashes(), warn, Switches()
        self._summed, self._end = summed, weakref.WeakMethod(end)
        self.tell_no_room: Callable[[NoRoom], None] | None = None
        self._waiting: Waiting | None = None  # what the last step that was spilled has put elsewhere
        self._unrecorded = 0  # steps that should have been recorded and could not be

    def spilled(self, begins: Forward) -> StepRunner:
        """Return a runner that only spills the step that begins; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        return SpilledRunner(self._spilled(SpilledStep(begins.model, begins.device, begins.arguments, stash)))

    def timed(self, begins: Forward) -> StepRunner:
        """Return a runner that times the step; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        self.stashes.hold(begins.device, stash)
        return TimedRunner(self._spilled(TimedStep(begins.model, begins.device, begins.arguments, stash)))

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
            runner: StepRunner = SpilledRunner(self._spilled(spilled))
        else:
            private.yields_to_others(functools.partial(_ends, self._end, weakref.ref(self.stashes)))
            spoken.recording(is_first=is_first, changed=changed)
            runner = RecordedRunner(self._spilled(step))
        self.stashes.hold(begins.device, stash)  # not before: ending another recording releases what is held
        return runner

    def planned(self, installed: Installation, ready: Ready | None, measured: Measured | None) -> StepRunner:
        """Return a runner under the plan that is on the model. It releases the stash when the plan's rehearsal ends."""
        checks = ready.checks if ready is not None else None
        lets_go = functools.partial(_rehearsed, self.stashes, checks) if self.stashes.holding else None
        return PlannedRunner(installed, ready, measured, lets_go)

    def _spilled(self, step: S) -> S:
        """Remember what a step puts elsewhere, for the recording that follows it."""
        self._waiting, step.spill.tell_no_room = step.spill.waiting, self.tell_no_room
        return step

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
