"""Runs a step under a plan, and measures its peak if the device's allocator keeps statistics.

    began     allocated 30, peak 50        new bytes: 30 less what the plan predicts as a step begins
    ...       the planned step
    ended     allocated 28, peak 62        the peak has risen, so 62 is that of the step; else the step stayed below 50

The statistics belong to the user, so they are never reset. The peak is read as soon as the step is over: what the loop
does next (a validation pass, tensors of its own) is not part of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from .. import _torch_private as private
from .._batches.batch import Batch, Forward
from .._device import Device, Level
from .._frames.thread import carrying
from .._install.installation import Installation
from .known import Ready
from .state import Ran
from .step import StepRunner


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
        with carrying(self._carried):  # calls are numbered on from the step's earlier forwards
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
        if self._after_backward is not None and not self._backward_began:  # it may have begun at no output
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
