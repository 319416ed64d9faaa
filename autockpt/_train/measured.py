"""What a planned step was measured to hold, where its device keeps statistics.

    began     allocated 30, peak 50        what is new beside the plan: 30 less what the plan has as a step begins
    ...       the planned step
    ended     allocated 28, peak 62        the peak has risen, so 62 is the step's own; else it stood below 50

The statistics are the user's and are not reset. So the peak is read again as soon as the step is over, before anything
else that the user's loop does: a validation pass, or tensors of its own, are no part of the step.
"""

from __future__ import annotations

from .._device import Device, Level
from .known import Ready


class Measured:
    """Measures one planned step, which begins now.

    Args:
        device: where it runs.
        ready: the plan that it runs under.
        gradient_bytes: of the gradients with which it begins.
    """

    def __init__(self, device: Device, ready: Ready, gradient_bytes: int) -> None:
        self._device, self._ready, self._began = device, ready, device.level()
        self._ended: Level | None = None
        allocated_bytes = self._began.allocated_bytes if self._began is not None else 0
        self._new_bytes = max(allocated_bytes - ready.begin_bytes - gradient_bytes, 0)

    def ends(self) -> None:
        """Note that the step may be over."""
        if self._began is not None:
            self._ended = self._device.level()

    def above(self, budget_bytes: int | None) -> tuple[int, int]:
        """Return by how much the step stood above a budget and above its plan's predicted peak; 0 where it did not.

        A plan that does not fit is known to stand above the budget, and says so.
        """
        if self._ended is None:
            self.ends()
        if self._began is None or self._ended is None or budget_bytes is None or self._ready.unfit:
            return 0, 0
        peak_bytes = self._ended.peak_bytes
        if peak_bytes <= max(self._began.peak_bytes, budget_bytes):
            return 0, 0
        # What is new is measured again as the next plan is made.
        return peak_bytes - budget_bytes, max(peak_bytes - self._new_bytes - self._ready.plan.peak_bytes, 0)
