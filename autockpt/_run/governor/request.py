"""What a user asked `apply` for, where the plan is not given but made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..._choose.candidates import Candidates
from ..._choose.solve import choose
from ..._data.goal import Asked, Goal, Patterns, Pins
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._record.optimizer import Optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of plans, and what is known of the steps that they are for.

    Attributes:
        goal: what is asked, a budget for one.
        loss: maps outputs to a scalar; None where it is the model's own, or not known.
        optimizer: what trains the model, or the name of its class; None for whatever is found to.
        solver: a name in ``autockpt.solvers.SOLVERS``.
        seconds: how long the solver may search.
        keep: patterns of calls that must not run again.
        recompute: patterns of calls that must.
        plan_for: largest shapes that tensors of the batch will have, by name of the argument.
        measured_steps: how many steps to measure after a plan was made.
    """

    goal: Goal
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Optimizers | None = None
    solver: str = "auto"
    seconds: float = 3.0
    keep: Patterns = ()
    recompute: Patterns = ()
    plan_for: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    measured_steps: int = 0

    def solve(
        self, profile: Profile, found: Candidates, *, margin: float = 0.0, limit_seconds: float = math.inf
    ) -> Plan:
        """Return a plan for a recorded step.

        Args:
            profile: of the step.
            found: what may be recomputed in it.
            margin: share of the budget that is left alone, a ratio.
            limit_seconds: how long to look for a good plan, at most, and then no bound is worked out for it; without a
                limit as long as the user said.
        """
        budget_bytes, goal = self.goal.budget_bytes, self.goal
        if budget_bytes is not None and margin:
            goal = Goal(budget=int((1 - margin) * budget_bytes))
        asked = Asked(
            goal=goal,
            solver=self.solver,
            seconds=min(self.seconds, limit_seconds),
            pins=Pins.of(self.keep, self.recompute),
        )
        return choose(
            profile,
            asked,
            found=found,
            bounded=limit_seconds == math.inf,  # in the midst of training nobody waits to hear how near it comes
        )
