"""What a user asked `apply` for, if a plan is to be made rather than given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.optim import Optimizer

from .. import __version__
from .._choose.solve import choose, restate
from .._data.goal import NO_PINS, Asked, Goal, Pins
from .._data.offload import Offload
from .._data.plan import Plan
from .._data.profile import Profile
from .._ranks.errors import PLAN
from .._record.optimizers.memory import Optimizers, refuse_no_optimizer
from .._run.compare.checks import Checking
from .._torch.devices import Device
from ..solvers.errors import BudgetError, Infeasible
from ..solvers.registry import named
from ..solvers.units import format_like, in_unit_of, shown

if TYPE_CHECKING:
    from .._compiled.refusals import CompiledRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asks of plans, and says about the steps that they are for.

    Attributes:
        goal: what is asked for, such as a budget.
        loss: maps outputs to a scalar; None if the model returns its loss, or it is not known.
        optimizer: the optimizer that trains the model, or the name of its class; None for those that are seen to step.
        solver: a name in ``autockpt.solvers.SOLVERS``, or ``uniform:4`` or ``block:4`` for so many layers.
        seconds: how long the solver may search. Finding candidates before that takes at most two thirds as long.
        pins: calls that must run again, and calls that must not.
        plan_for: largest shapes that tensors of the batch will have, by name of the argument.
        strict: whether a later step that no plan holds to the budget raises.
        check: which replays are compared with their forwards.
        offload: where tensors may wait off the device; None if they stay on it.

    Raises:
        BudgetError: `seconds` is not a number, or `plan_for` has no shapes.
        ProfilingError: `optimizer` is not an optimizer.
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
        """Refuse now, before any step, what would fail later when a plan is made."""
        named(self.solver)
        self._asked(self.goal)
        refuse_no_optimizer(self.optimizer)
        _refuse_no_shapes(self.plan_for)

    def copied(self) -> Request:
        """Return the request for a copy of the model: without an optimizer object, since that trains this model."""
        return self if isinstance(self.optimizer, str) else replace(self, optimizer=None)

    def inside_compiled(self) -> CompiledRequest | None:
        """Return what is asked for of a model that is compiled as a whole; None where that cannot be asked of one."""
        from .._compiled.refusals import CompiledRequest  # who does not compile loads none of it

        if self.goal.max_overhead is not None or self.pins != NO_PINS or any((self.plan_for, self.loss, self.offload)):
            return None
        return CompiledRequest(
            goal=self.goal, optimizer=self.optimizer, solver=self.solver, seconds=self.seconds, strict=self.strict
        )

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers that were given as objects, not by name."""
        told = self.optimizer if isinstance(self.optimizer, (list, tuple)) else [self.optimizer]
        return [each for each in told if isinstance(each, Optimizer)]

    def budget(self) -> str:
        """The budget in brackets, as part of a sentence; empty if none in bytes is asked for."""
        return f" ({format_like(self.goal.budget_bytes, self.goal.budget)})" if self.goal.budget_bytes else ""

    def compared(self, *, given: bool) -> dict[str, str]:
        """Return what must be the same on all ranks that train one model, in words.

        Args:
            given: whether this rank plans on a batch that the user gives.
        """
        return {
            PLAN: "to be made",
            "version": __version__,
            "budget": str(self.goal),
            "solver": self.solver,
            "seconds": str(self.seconds),
            "pins": ", ".join(map(str, self.pins)) or "none",
            "inputs": "given" if given else "not given",
            "offload": "" if self.offload is None else self.offload.where,
        }

    def solve(self, profile: Profile, device: Device, *, share: float = 1) -> Plan:
        """Return a plan for a recorded step.

        Args:
            profile: the profile of the step.
            device: the device that it trains on. A margin of the budget is left to the device's allocator.
            share: the share of the budget to plan for, if there is a budget.
        """
        goal = less_margin(self.goal, device)
        if share != 1 and goal.budget_bytes is not None:
            goal = Goal(budget=in_unit_of(int(share * goal.budget_bytes), goal.budget))
        try:
            plan = choose(profile, self._asked(goal), bounded=False)
        except Infeasible as error:
            asked = self.goal.budget if isinstance(self.goal.budget, str) else ""
            raise error.carrying(asked=asked, margin=device.margin) from None
        return msgspec.structs.replace(plan, goal=self.goal)

    def restated(self, plan: Plan, profile: Profile, device: Device, *, fits: bool = True) -> Plan | None:
        """Restate a plan, made for a similar step, as a plan for this step; None if it does not suit this step.

        Args:
            plan: the plan.
            profile: the profile of this step.
            device: the device that it trains on.
            fits: whether the plan has to keep this step to what is asked for.
        """
        goal = less_margin(self.goal, device) if fits else Goal(budget="min")
        again = restate(plan, profile, self._asked(goal))
        return msgspec.structs.replace(again, goal=self.goal) if again is not None and fits else again

    def _asked(self, goal: Goal) -> Asked:
        return Asked(goal=goal, solver=self.solver, seconds=self.seconds, pins=self.pins, offload=self.offload)


def less_margin(goal: Goal, device: Device) -> Goal:
    """Return the goal with a budget in bytes reduced by the margin that the device's allocator needs."""
    if goal.budget_bytes is None or not device.margin:
        return goal
    return Goal(budget=in_unit_of(int((1 - device.margin) * goal.budget_bytes), goal.budget))


def _refuse_no_shapes(plan_for: object) -> None:
    """Refuse a `plan_for` that does not map names to shapes."""
    whole = isinstance(plan_for, Mapping) and all(isinstance(name, str) for name in plan_for)
    shapes: Iterable[object] = plan_for.values() if isinstance(plan_for, Mapping) else ()
    if not whole or not all(map(_is_shape, shapes)):
        raise BudgetError(
            "plan_for is the largest shape of each argument by its name, such as {'input_ids': (8, 2048)}; found "
            f"{shown(plan_for)}"
        )


def _is_shape(shape: object) -> bool:
    return isinstance(shape, (tuple, list)) and all(type(size) is int and size >= 0 for size in shape)
