"""What a user asked `apply` for, where the plan is not given but made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .._choose.solve import choose
from .._data.goal import NO_PINS, Asked, Goal, Pins
from .._data.plan import Plan
from .._data.profile import Profile
from .._device import Device
from .._record.optimizer import Optimizers
from .frames import Checking


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of plans, and what is known of the steps that they are for.

    Attributes:
        goal: what is asked, a budget for one.
        loss: maps outputs to a scalar; None where it is the model's own, or not known.
        optimizer: what trains the model, or the name of its class; None for what is seen to.
        solver: a name in ``autockpt.solvers.SOLVERS``.
        seconds: how long the solver may search; candidates take two thirds of that before it, at most.
        pins: calls that must not run again, or must.
        plan_for: largest shapes that tensors of the batch will have, by name of the argument.
        strict: whether a later step that cannot fit raises.
        check: which replays are compared with their forwards.
    """

    goal: Goal
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Optimizers | None = None
    solver: str = "auto"
    seconds: float = 3.0
    pins: Pins = NO_PINS
    plan_for: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    strict: bool = False
    check: Checking = "sampled"

    def copied(self) -> Request:
        """Return what a copy of the model can take along: an optimizer by its name, but none that trains this one."""
        return self if isinstance(self.optimizer, str) else replace(self, optimizer=None)

    def solve(self, profile: Profile, device: Device, *, bounded: bool = True) -> Plan:
        """Return a plan for a recorded step.

        Args:
            profile: of the step.
            device: where it trains, whose allocator takes a margin of the budget.
            bounded: whether to work out how near the plan comes to what is possible.
        """
        goal = less_margin(self.goal, device)
        asked = Asked(goal=goal, solver=self.solver, seconds=self.seconds, pins=self.pins)
        return choose(profile, asked, bounded=bounded)


def less_margin(goal: Goal, device: Device) -> Goal:
    """Return a goal that leaves the allocator of a device its margin of a budget in bytes."""
    if goal.budget_bytes is None or not device.margin:
        return goal
    return Goal(budget=int((1 - device.margin) * goal.budget_bytes))
