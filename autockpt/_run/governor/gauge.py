"""What the first steps under a plan really need, and by how much the plan was wrong.

before step 1        before step 2        ...
│ open               │ read, open
├── forward, backward, optimizer ──┤
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from ..._check.measure import Measurement, Meter, meter_of
from ..._data.errors import ProfilingError
from ..._data.plan import Plan

_log = logging.getLogger("autockpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A measured step, and the plan that it ran under.

    Attributes:
        plan: whose prediction was for exactly such a step.
        measurement: of the step.
    """

    plan: Plan
    measurement: Measurement

    @property
    def error_bytes(self) -> int:
        """How far the measured peak lies above the predicted one."""
        return self.measurement.peak_bytes - self.plan.peak_bytes

    @property
    def left_bytes(self) -> int:
        """What the step left behind: state that an optimizer made, which stands under the peak of the next step."""
        return max(self.measurement.end_bytes - self.measurement.start_bytes, 0)


class Gauge:
    """Measures steps from the begin of one to the begin of the next, the optimizer included.

    Args:
        steps: how many to measure after each plan.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._left = steps
        self._plan: Plan | None = None
        self._meter: Meter | None = None

    def open(self, plan: Plan, device: torch.device) -> None:
        """Begin to measure the step that begins now, if it is one of the first under this plan."""
        if plan is not self._plan:
            self._plan, self._left = plan, self._steps
        if not self._left:
            return
        self._left -= 1
        meter = meter_of(device)
        try:
            meter.start()
        except ProfilingError as error:
            _log.warning("a step is not measured: %s", error)
            return
        self._meter = meter

    def read(self) -> Reading | None:
        """End what was begun, and return it; None if nothing was."""
        if self._meter is None or self._plan is None:
            return None
        meter, self._meter = self._meter, None
        return Reading(plan=self._plan, measurement=meter.stop())
