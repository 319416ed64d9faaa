"""Two protocols: the way in which a step runs, and the plan that is on a model, as the governor uses them.

Ways: `SpilledWay`, `RecordedWay` and `TimedWay` in ways.py, `PlannedWay` in planned.py. `Installed` is implemented by
`Installation` in `_install`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from .._batches.batch import Batch, Forward
from .._compare.checks import ReplayChecks
from .._data.plan import Plan
from .._install.installation import PlanReport
from .._record.recorded import Recorded
from .._record.timed import Timing
from .known import Ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStep:
    """What was seen of a step that is over.

    Attributes:
        recorded: the recording; None if it was not recorded.
        timing: the stamps; None if it was not timed.
        foreign: whether the user's hooks replaced saved tensors by something else.
        ready: the plan that it ran under; None without one.
        peak_bytes: its measured peak; None if the device does not tell, or if an earlier peak was as high.
        new_bytes: bytes allocated as it began that its plan does not count on.
    """

    recorded: Recorded | None = None
    timing: Timing | None = None
    foreign: bool = False
    ready: Ready | None = None
    peak_bytes: int | None = None
    new_bytes: int = 0

    @property
    def made(self) -> tuple[int, ...]:
        """Sizes of what the loop allocated between this step and the next; empty if this step was not recorded."""
        return self.recorded.made if self.recorded is not None else ()


class Way(Protocol):
    """How one step runs, and what is seen of it.

    Attributes:
        watches: whether the step is watched. Watching ends as something else begins, and covers only this thread.
        tapes: whether a tape watches it. A tape has to end in its own thread, and also sees what the loop allocates
            between steps.
        unhooked: whether a forward switched off, for a while, the saved-tensor hooks that the way needs.
        reached: whether a backward was seen to read what a forward saved; False where none is watched.
    """

    __slots__ = ()

    watches: bool
    tapes: bool

    @property
    def unhooked(self) -> bool: ...

    @property
    def reached(self) -> bool: ...

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether a step with these forwards so far keeps to the budget; it began with so many bytes of gradients."""

    def forward(self, begins: Forward) -> Any:
        """Run one of the step's forwards."""

    def call(self, begins: Forward) -> Any:
        """Run a call of the model, or of another one of several, that comes from inside one of the forwards."""

    def backward_begins(self) -> None:
        """Note that a backward begins, or has begun; called inside it."""

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has taken a step, and the state that it now has."""

    def pauses(self) -> None:
        """Note that the model runs a forward that does not train, so that the step may be over."""

    def end(self, arguments: object, *, cut: bool) -> ObservedStep:
        """End the step, because something else begins.

        Args:
            arguments: the arguments of what begins. They are not part of the step.
            cut: whether something else than the next step's forward begins. Then part of what the loop allocates before
                that forward is not seen.

        Raises:
            ProfilingError: nothing can be learnt from the step.
        """

    def drop(self) -> None:
        """Release what the way holds. Graphs that are alive keep what they need."""


class Installed(Protocol):
    """The plan that is on a model, or on several."""

    @property
    def plan(self) -> Plan | None:
        """The plan; None before there is one."""

    @property
    def roots(self) -> tuple[str, ...]:
        """Names of the modules whose forwards the user's loop calls."""

    def forward(self, begins: Forward) -> Any:
        """Run a forward under the plan."""

    def take_report(self) -> PlanReport:
        """Return what was seen since the last report."""

    def replace(
        self,
        model: nn.Module,
        plan: Plan,
        checks: ReplayChecks | None,
        calls: Mapping[str, int],
        early: Collection[int],
    ) -> None:
        """Put another plan on the model; see `Installation.replace`."""

    def empty(self) -> None:
        """Recompute nothing from now on."""

    def remove(self, model: nn.Module) -> None:
        """Take the plan off the model; see `Installation.remove`."""
