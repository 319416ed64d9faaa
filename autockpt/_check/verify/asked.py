"""What `verify` is asked to run: a model on a batch, or what a loop does with several. Refuses what makes no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..._calls.roots import OneStep, Together, roots
from ..._choose.pinned.pins import refuse_pins
from ..._data.compiled_plan import CompiledPlan
from ..._data.errors import NotApplicable
from ..._data.goal import Patterns
from ..._data.plan import refuse_no_plan
from ..._record.step import refuse_other
from ..._run.patch.install import installed_plan
from ...solvers.errors import BudgetError
from ...solvers.units import shown

STEP = "verify([encoder, unet], batch, step=lambda batch: loss_of(unet(batch, encoder(batch))))"


def runnable(model: torch.nn.Module, step: object, loss: object) -> torch.nn.Module:
    """Return what runs one step: the model, or several with what a loop does with them.

    Raises:
        NotApplicable: several models are given without a step, or one model with one; or the step is no function.
    """
    if not isinstance(model, Together):
        if step is not None:
            raise NotApplicable(
                "step= says what a loop does with several models, and one was given. Leave it out, and give "
                "loss=, a function from the model's outputs to a scalar, where the model returns no loss."
            )
        refuse_other(model)
        return model
    if step is None or loss is not None:
        raise NotApplicable(
            "several models were given, and what a loop does with them is not known. Give step= alone, a function "
            f"that is given the batch, calls the models and returns the loss: {STEP}"
        )
    if not callable(step):
        raise NotApplicable(f"step is {shown(step)}; it must be a function from the batch to the loss: {STEP}")
    made: Callable[..., Any] = step
    return OneStep(roots(model), made)


def refuse_unclear(
    plan: object, budget: object, max_overhead: object, keep: Patterns, recompute: Patterns, steps: int
) -> None:
    """Refuse what makes no sense before anything runs."""
    if sum(each is not None for each in (plan, budget, max_overhead)) > 1:
        raise BudgetError(
            "give either a budget, or max_overhead, or a plan, and only one of them: verify(model, batch, budget='8GB')"
        )
    if plan is not None:
        refuse_no_plan(plan)
    if isinstance(plan, CompiledPlan):
        raise NotApplicable(
            "plan= is one of compiled code, and verify puts on plans of calls alone. Apply it to the compiled model, "
            "apply(compiled, plan=plan), and verify that: verify(compiled, batch)"
        )
    if type(steps) is not int or steps < 1:
        raise NotApplicable(f"steps={shown(steps)}: there must be at least one step to compare")
    if budget is None and max_overhead is None:
        refuse_pins(keep, recompute)


def refuse_plans_inside(model: torch.nn.Module) -> None:
    inside = [name for name, module in model.named_modules() if name and installed_plan(module) is not None]
    if inside:
        raise NotApplicable(
            f"a plan is applied to a part of the model, {inside[0]!r}, so that no step of the whole would be plain. "
            "Remove that one first, or verify that part."
        )
