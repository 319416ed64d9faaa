"""`apply`, `remove`, `plan_of`: a plan on a model, in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ._errors import BudgetError, NotApplicable
from ._goal import Goal
from ._install import install, installed_plan, uninstall
from ._pins import Patterns, refuse_pins
from ._plan import Plan
from ._record import profile
from ._record.optimizer import Optimizers
from ._solve import solve_for

__all__ = ["apply", "goal_for", "plan_for", "plan_of", "remove"]

M = TypeVar("M", bound=torch.nn.Module)


def apply(
    model: M,
    budget: int | str | None = None,
    *,
    max_overhead: float | None = None,
    plan: Plan | None = None,
    inputs: object = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Optimizers | None = None,
    solver: str = "auto",
    time_limit_seconds: float = 3.0,
    keep: Patterns = (),
    recompute: Patterns = (),
) -> M:
    """Make `model` train within `budget`, by recomputing what costs least to run again.

    Gradients, buffers and random numbers stay bit for bit those of the plain step. The model is changed in place;
    applying again replaces the plan, and an error leaves the model as it was.

    The plan is for steps like the recorded one: on batches of this shape, beginning with the gradients that exist
    now (none, after ``zero_grad()``), with the outputs held until backward is over.

    Args:
        model: any eager module.
        budget: highest peak of the whole step: bytes, ``"8GB"``, ``"8GiB"``, ``"80%"`` of the device's memory (on a
            CPU, of the physical memory); ``"min"`` for the lowest peak that can be reached.
        max_overhead: instead of a budget, the highest recompute overhead, a ratio such as 0.15, for the lowest peak
            within it.
        plan: a plan to apply as it is, instead of either.
        inputs: one batch to record: a tuple is passed positionally, a mapping by keyword.
        loss: maps the model's outputs to a scalar; without it, an output's ``.loss``, else the sum over the
            outputs that require gradients.
        optimizer: its state and its step count in the budget; it is neither run nor changed. A name such as ``"adamw"``
            stands for a class of ``torch.optim`` with its defaults.
        solver: a name in ``autockpt.solvers.SOLVERS``.
        time_limit_seconds: how long the solver may search.
        keep: patterns of calls that must not run again, with a budget only; see `solve`.
        recompute: patterns of calls that must run again.

    Returns:
        The model itself.

    Raises:
        BudgetError: the budget does not parse, or not exactly one of `budget`, `max_overhead`, `plan` is given.
        Infeasible: no plan meets the budget; carries the minimum reachable bytes, what they consist of, what would
            help, and the plan that reaches them.
        NotApplicable: the plan names calls that the model does not have, or the model cannot be planned.
        PinError: a pattern matches no call, no plan can honour the pins, or a plan is given besides.
        ProfilingError: the model cannot be recorded.
        TooCostly: all plans of this solver that honour the pins have a higher recompute overhead.
        UnknownSolver: there is no such solver.
        Exception: whatever the model's own forward raises.

    Example:
        >>> import torch, autockpt
        >>> block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32))
        >>> model, batch = torch.nn.Sequential(*(block() for _ in range(8))), torch.randn(256, 32)
        >>> model = autockpt.apply(model, budget="2MB", inputs=batch)
        >>> len(autockpt.plan_of(model).segments) > 0
        True
    """
    if sum(given is not None for given in (budget, max_overhead, plan)) != 1:
        raise BudgetError(
            "give either a budget, or max_overhead, or a plan, and only one of them: "
            "apply(model, budget='8GB', inputs=batch)"
        )
    if plan is not None:
        refuse_pins(keep, recompute)
    else:
        goal = goal_for(model, budget, max_overhead)
        if inputs is None:
            raise NotApplicable("a budget needs a batch to plan on: apply(model, budget=..., inputs=batch)")
        plan = plan_for(
            model,
            inputs,
            goal,
            loss=loss,
            optimizer=optimizer,
            solver=solver,
            time_limit_seconds=time_limit_seconds,
            keep=keep,
            recompute=recompute,
        )
    install(model, plan)
    return model


def goal_for(model: torch.nn.Module, budget: int | str | None, max_overhead: float | None) -> Goal:
    """State what is asked of a plan for `model`, on whose device a budget in percent is taken."""
    total_bytes, memory = _memory(model)
    return Goal.of(budget, max_overhead, total_bytes=total_bytes, memory=memory)


def plan_for(
    model: torch.nn.Module,
    inputs: object,
    goal: Goal,
    *,
    loss: Callable[[Any], torch.Tensor] | None,
    optimizer: Optimizers | None,
    solver: str,
    time_limit_seconds: float = 3.0,
    keep: Patterns,
    recompute: Patterns,
) -> Plan:
    """Record a step of `model` and return a plan that does what is asked; arguments and errors as for `apply`."""
    recorded = profile(model, inputs, loss=loss, optimizer=optimizer)
    return solve_for(
        recorded, goal, solver=solver, time_limit_seconds=time_limit_seconds, keep=keep, recompute=recompute
    )


def remove(model: M) -> M:
    """Take a plan off a model, leaving no trace; no effect where none is applied.

    Args:
        model: the model.

    Returns:
        The model itself.

    Raises:
        NotApplicable: somebody else patched a forward over ours; names the modules.
    """
    uninstall(model)
    return model


def plan_of(model: torch.nn.Module) -> Plan | None:
    """Return the plan that is applied to `model`, or None."""
    return installed_plan(model)


def _memory(model: torch.nn.Module) -> tuple[int | None, str]:
    """Bytes of memory where the model is, None if they are not known, and what memory that is."""
    parameter = next(model.parameters(), None)
    kind = "" if parameter is None else parameter.device.type
    if parameter is not None and kind == "cuda":
        return torch.cuda.get_device_properties(parameter.device).total_memory, "device memory"
    if kind == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "physical memory"
    return None, ""
