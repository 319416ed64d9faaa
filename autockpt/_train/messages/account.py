"""How a model's steps ran so far: its plans and why they were made, and the measured peak and seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ..._data.goal import Goal
from ..._data.plan import Plan
from ..._torch.devices import Device, device_of
from . import spoken

MOST_STEPS = 64
"""How many planned steps' seconds are remembered: those of the newest."""

MOST_PLANS = 100

BEGUN_ANEW = 0.1
"""Share of the predicted peak by which the measured peak may be lower. If it is lower still, the user has reset the
statistics since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A plan that was made, and why."""

    plan: Plan
    reason: str


class StepCount:
    """Counts and times the steps that run under a plan.

    Attributes:
        steps: how many there were.
        device: the device that they ran on; None before the first.
        seconds: seconds of the newest, each from its begin to the begin of the next step.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.device: Device | None = None
        self.seconds: deque[float] = deque(maxlen=MOST_STEPS)
        self._began: float | None = None

    def begins(self, *, planned: bool, device: Device) -> None:
        """Note that a step begins, and whether a `planned` one is counted with it: the one before it, or itself."""
        self.device = device
        now, began = time.perf_counter(), self._began
        self._began = now
        self.steps += planned
        if planned and began is not None:
            self.seconds.append(now - began)

    def peak_bytes(self) -> int | None:
        """The peak in the statistics of the device's allocator; None if it keeps none."""
        level = self.device.level() if self.device is not None else None
        return level.peak_bytes if level is not None else None


class GivenSteps(StepCount):
    """Counts the steps under a plan that was given, in which no governor sees them: each is a training forward.

    Args:
        first: name of the model; of several, of the one whose forwards are counted.
    """

    def __init__(self, first: str) -> None:
        super().__init__()
        self._first = first

    def __call__(self, root: nn.Module, name: str) -> None:
        """Note that a training forward of a model begins."""
        parameter = next(root.parameters(), None)
        if name == self._first and parameter is not None:
            self.begins(planned=True, device=device_of(parameter.device))

    def __deepcopy__(self, memo: object) -> GivenSteps:
        return GivenSteps(self._first)  # a copied model has had no steps


class Account(StepCount):
    """Remembers how the steps of one governor's model ran, and tells the user what is new.

    Args:
        goal: what the user asked for.

    Attributes:
        plans: the plans that were made, oldest first.
        refused: calls that are kept because a replay of them differed, with the reasons.
        unplanned: why steps run without a plan; empty where one is there, or comes.
        delayed: why the last step could not be recorded; empty where it was.
        untrained: how many forwards ran that could not train.
    """

    def __init__(self, goal: Goal) -> None:
        super().__init__()
        self.goal = goal
        self.plans: deque[Made] = deque(maxlen=MOST_PLANS)
        self.refused: dict[str, str] = {}
        self.unplanned = self.delayed = ""
        self.untrained = 0

    def planned(self, plan: Plan, reason: str) -> None:
        """Note a plan, and tell its peak and cost."""
        spoken.ready(plan, self.goal, reason if self.plans else "")
        self.plans.append(Made(plan=plan, reason=reason))
        self._began = None  # the time that planning took is not part of a step

    def begins(self, *, planned: bool, device: Device) -> None:
        """Note that a step begins, and whether the one before it was `planned`. Tell the peak of the first of those."""
        super().begins(planned=planned, device=device)
        if planned and self.steps == 1 and self.plans:
            plan, peak_bytes = self.plans[-1].plan, self.peak_bytes() or 0
            if peak_bytes >= (1 - BEGUN_ANEW) * plan.peak_bytes:
                spoken.measured(peak_bytes, plan, self.goal)

    def refuse(self, faults: Mapping[str, str]) -> None:
        """Note calls that are kept from now on."""
        self.refused |= faults
