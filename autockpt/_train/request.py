"""What a user asked `apply` for, where the plan is not given but made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim import Optimizer

from .._choose.solve import choose, restate
from .._compare.checks import Checking
from .._data.goal import NO_PINS, Asked, Goal, Pins
from .._data.offload import Offload
from .._data.plan import Plan
from .._data.profile import Profile
from .._device import Device
from .._optimizer.memory import Optimizers, refuse_no_optimizer
from ..solvers.errors import BudgetError, Infeasible
from ..solvers.registry import named
from ..solvers.units import alike, format_like, shown


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
        offload: where tensors may wait off the device; None where they stay.

    Raises:
        BudgetError: the seconds are no number, or the shapes no shapes.
        ProfilingError: the optimizer is none.
        UnknownSolver: there is no such solver.
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
    offload: Offload | None = None

    def __post_init__(self) -> None:
        """Refuse before any step what would fail as the plan is made."""
        named(self.solver)
        self._asked(self.goal)
        refuse_no_optimizer(self.optimizer)
        _refuse_no_shapes(self.plan_for)

    def copied(self) -> Request:
        """Return what a copy of the model can take along: an optimizer by its name, but none that trains this one."""
        return self if isinstance(self.optimizer, str) else replace(self, optimizer=None)

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers that were given, not named."""
        told = self.optimizer if isinstance(self.optimizer, (list, tuple)) else [self.optimizer]
        return [each for each in told if isinstance(each, Optimizer)]

    def budget(self) -> str:
        """The budget in brackets, for a sentence; empty where none in bytes is asked for."""
        return f" ({format_like(self.goal.budget_bytes, self.goal.budget)})" if self.goal.budget_bytes else ""

    def solve(self, profile: Profile, device: Device, *, share: float = 1) -> Plan:
        """Return a plan for a recorded step.

        Args:
            profile: of the step.
            device: where it trains, whose allocator takes a margin of the budget.
            share: of the budget, where there is one.
        """
        goal = less_margin(self.goal, device)
        if share != 1 and goal.budget_bytes is not None:
            goal = Goal(budget=alike(int(share * goal.budget_bytes), goal.budget))
        try:
            return choose(profile, self._asked(goal), bounded=False)
        except Infeasible as error:
            asked = self.goal.budget if isinstance(self.goal.budget, str) else ""
            raise error.carrying(asked=asked, margin=device.margin) from None

    def restated(self, plan: Plan, profile: Profile, device: Device, *, fits: bool = True) -> Plan | None:
        """Return a plan that was made for a like step, as one for this; None where it does not do for it.

        Args:
            plan: the plan.
            profile: of this step.
            device: where it trains.
            fits: whether it has to hold to what is asked for.
        """
        return restate(plan, profile, self._asked(less_margin(self.goal, device) if fits else Goal(budget="min")))

    def _asked(self, goal: Goal) -> Asked:
        return Asked(goal=goal, solver=self.solver, seconds=self.seconds, pins=self.pins, offload=self.offload)


def less_margin(goal: Goal, device: Device) -> Goal:
    """Return a goal that leaves the allocator of a device its margin of a budget in bytes."""
    if goal.budget_bytes is None or not device.margin:
        return goal
    return Goal(budget=alike(int((1 - device.margin) * goal.budget_bytes), goal.budget))


def _refuse_no_shapes(plan_for: object) -> None:
    """Refuse largest shapes that are none."""
    whole = isinstance(plan_for, Mapping) and all(isinstance(name, str) for name in plan_for)
    shapes: Iterable[object] = plan_for.values() if isinstance(plan_for, Mapping) else ()
    if not whole or not all(map(_is_shape, shapes)):
        raise BudgetError(
            "plan_for is the largest shape of each argument by its name, such as {'input_ids': (8, 2048)}; found "
            f"{shown(plan_for)}"
        )


def _is_shape(shape: object) -> bool:
    return isinstance(shape, (tuple, list)) and all(type(size) is int and size >= 0 for size in shape)
