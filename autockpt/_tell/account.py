"""What has become of a model's steps so far: its plans and why they were made, and what steps were measured to hold."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from .._data.goal import Goal
from .._data.plan import Plan
from .._device import Device
from . import spoken

MOST_STEPS = 64
"""Planned steps whose seconds are remembered, the newest."""

MOST_PLANS = 100

BEGUN_ANEW = 0.1
"""By how much of a planned peak the highest level may lie below it: else somebody has reset the statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A plan that was made, and why."""

    plan: Plan
    reason: str


class Account:
    """Remembers, for one governor, and says what is new.

    Args:
        goal: what the user asked for.

    Attributes:
        plans: those that were made, the oldest first.
        steps: how many ran under one.
        device: where they ran.
        seconds: of the newest planned steps, from the begin of one to that of the next.
        refused: calls that are kept since a replay of them differed, with the reasons.
    """

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.plans: deque[Made] = deque(maxlen=MOST_PLANS)
        self.steps = 0
        self.device: Device | None = None
        self.seconds: deque[float] = deque(maxlen=MOST_STEPS)
        self.refused: dict[str, str] = {}
        self._began: float | None = None

    def planned(self, plan: Plan, reason: str) -> None:
        """Note a plan, and say what it comes to."""
        spoken.ready(plan, self.goal, reason if self.plans else "")
        self.plans.append(Made(plan=plan, reason=reason))
        self._began = None  # planning is no part of a step

    def begins(self, *, planned: bool, device: Device) -> None:
        """Note that a step begins, and whether the one before it ran under a plan; say what the first of those held."""
        self.device = device
        now, began = time.perf_counter(), self._began
        self._began = now
        self.steps += planned
        if planned and began is not None:
            self.seconds.append(now - began)
        if planned and self.steps == 1 and self.plans:
            plan, peak_bytes = self.plans[-1].plan, self.peak_bytes() or 0
            if peak_bytes >= (1 - BEGUN_ANEW) * plan.peak_bytes:
                spoken.measured(peak_bytes, plan, self.goal)

    def peak_bytes(self) -> int | None:
        """The most that the device's allocator has handed out so far; None where it keeps no statistics."""
        level = self.device.level() if self.device is not None else None
        return level.peak_bytes if level is not None else None

    def refuse(self, faults: Mapping[str, str]) -> None:
        """Note calls that are kept from now on."""
        self.refused |= faults
