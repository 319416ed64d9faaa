"""What a governor asks of the way a step runs, and of the plan that is on the model; it asks neither what it is.

Ways: `SpilledWay`, `RecordedWay` and `TimedWay` in ways.py, `PlannedWay` in planned.py. What is installed is an
`Installation` of `_frames`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        recorded: what it was, where it was recorded.
        timing: when what happened, where it was timed.
        foreign: whether hooks of the user's put something else in the place of saved tensors.
        ready: the plan that it ran under.
        peak_bytes: that its device was measured to hold; None where nobody can tell, or where that was more before it.
        new_bytes: of what stood as it began and did not when its plan was made.
    """

    recorded: Recorded | None = None
    timing: Timing | None = None
    foreign: bool = False
    ready: Ready | None = None
    peak_bytes: int | None = None
    new_bytes: int = 0

    @property
    def made(self) -> tuple[int, ...]:
        """Sizes of what the loop made after it and before the next one, where it was recorded."""
        return self.recorded.made if self.recorded is not None else ()


class Way(Protocol):
    """How one step runs, and what is seen of it.

    Attributes:
        watches: whether something watches it, that ends as something else begins, and that is not for other threads.
        tapes: whether that is a tape: it ends in the thread where it began, and sees what the loop makes between steps.
        unhooked: whether a forward switched off for a while what the way needs.
    """

    __slots__ = ()

    watches: bool
    tapes: bool

    @property
    def unhooked(self) -> bool: ...

    def covers(self, batches: Sequence[Batch], gradient_bytes: int) -> bool:
        """Whether it holds a step to the budget that has made these forwards so far and began with these gradients."""

    def forward(self, begins: Forward) -> Any:
        """Run one of the step's forwards."""

    def call(self, begins: Forward) -> Any:
        """Run a call of the model by itself, or of another of several, inside one of the forwards."""

    def backward_begins(self) -> None:
        """Note that a backward begins, or has begun; called inside it."""

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Note what an optimizer has whose step is over."""

    def pauses(self) -> None:
        """Note that the model does something else than train: the step may be over."""

    def end(self, arguments: object, *, cut: bool) -> ObservedStep:
        """End the step as something else begins.

        Args:
            arguments: of what begins: they are no part of the step.
            cut: whether that is no forward of the next step, so that not all is seen that the loop makes before it.

        Raises:
            ProfilingError: nothing can be learnt of it.
        """

    def drop(self) -> None:
        """Let go of what was begun; graphs that are alive keep what they need."""


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
        """Return what was seen since the last time."""

    def replace(self, model: nn.Module, plan: Plan, checks: ReplayChecks | None, calls: Mapping[str, int]) -> None:
        """Put another plan on the model; see `Installation.replace`."""

    def empty(self) -> None:
        """Recompute nothing from now on."""

    def remove(self, model: nn.Module) -> None:
        """Take the plan off the model; see `Installation.remove`."""
