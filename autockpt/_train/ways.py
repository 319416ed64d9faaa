"""What watches steps that run under no plan, and the stash in which all of them wait, one after the other.

step 1      step 2     step 3
recorded    timed      planned and rehearsed
├─ held ────┼─ held ───┼─ held ── its backward is over    then, or where something fails, the stash is let go
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

from torch import nn

from .. import _torch_private as private
from .._data.errors import NotApplicable, ProfilingError
from .._device import device_of
from .._frames import Nets
from .._record.in_place import RecordedStep
from .._record.ranks import refuse_sharded
from .._record.switches import CHECKPOINTING, Switches
from .._record.timed import TimedStep
from .._stash.held import HeldStashes
from .._stash.spilled_step import SpilledStep
from . import spoken
from .batch import Forward
from .known import Ready
from .said import STILL, Said

MOST_UNRECORDED = 4
"""Steps that could not be recorded, after which it is said again that there is no plan."""


class Ways:
    """Makes what watches the steps of one model.

    Args:
        said: what the user was told.

    Attributes:
        stashes: where what they save waits.
    """

    def __init__(self, said: Said) -> None:
        self.stashes, self._said, self._switches = HeldStashes(), said, Switches()
        self._unrecorded = 0  # steps that should have been

    def spilled(self, begins: Forward) -> SpilledStep:
        """Only spill the step that begins so; errors as for `SpilledStep`."""
        return SpilledStep(begins.model, begins.device, begins.arguments, self.stashes.open(begins.device))

    def timed(self, begins: Forward) -> SpilledStep:
        """Time it; errors as for `SpilledStep`."""
        stash = self.stashes.open(begins.device)
        self.stashes.hold(begins.device, stash)
        return TimedStep(begins.model, begins.device, begins.arguments, stash)

    def recorded(self, begins: Forward, end: Callable[[], None], *, is_first: bool) -> SpilledStep:
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
            way: SpilledStep = RecordedStep(begins.model, begins.device, begins.arguments, stash, is_first=is_first)
        except ProfilingError as error:
            self._said.once(f"this step is spilled and not recorded, a later one will be: {error}")
            self._unrecorded += 1
            if self._unrecorded == MOST_UNRECORDED:
                profiler = private.foreign_profiler()
                why = (
                    f"{profiler}, not of autockpt, runs around them, and a process has one" if profiler else f"{error}"
                )
                self._said.once(STILL.format(self._unrecorded, why))
            way = SpilledStep(begins.model, begins.device, begins.arguments, stash)
        else:
            private.yields_to_others(functools.partial(_ends, weakref.WeakMethod(end), weakref.ref(self.stashes)))
            spoken.recording(is_first=is_first)
        self.stashes.hold(begins.device, stash)  # not before: an earlier recording that ends lets go of what is held
        return way

    def after_rehearsal(self, ready: Ready | None) -> Callable[[], None] | None:
        """Return what is to be called as a backward under a plan is over, if anything is."""
        nets = ready.nets if ready is not None else None
        return functools.partial(_rehearsed, self.stashes, nets) if self.stashes.holding else None

    def switch_off(self, model: nn.Module) -> None:
        """Switch off what recomputes regions by itself, and say so."""
        self._said.once(CHECKPOINTING, where=self._switches.off(model))

    def put_back(self) -> None:
        """Switch what was switched off on again."""
        self._switches.put_back()


def _ends(method: weakref.WeakMethod[Callable[[], None]], stashes: weakref.ref[HeldStashes]) -> None:
    """End a recording, as far as that can be, and let go of what is held: another recording begins."""
    if (end := method()) is not None and (held := stashes()) is not None:
        end()
        held.let_go()


def _rehearsed(stashes: HeldStashes, nets: Nets | None) -> None:
    """Let go of stashes; where a plan was found at fault, the next one is rehearsed as well."""
    if nets is None or not nets.at_fault:
        stashes.let_go()
