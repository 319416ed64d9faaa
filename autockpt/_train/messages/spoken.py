"""Lines that tell how recording and planning proceed. `_data/text/terminal.py` decides where they are shown."""

from __future__ import annotations

from ..._data.goal import Goal
from ..._data.plan import Plan
from ..._data.text.terminal import say
from ...solvers.units import format_bytes, format_like
from .words import phrase

BESIDE_OWN = "beside what the model recomputes itself"


def recording(*, is_first: bool, changed: str = "") -> None:
    """Say that a step is recorded, and how the model has changed since the last one was; empty if it has not."""
    again = (
        f"recording a step, since the model changed: {changed}" if changed else "recording a step that no plan covers"
    )
    say("step 1 of 3: recording" if is_first else again)


def ready(plan: Plan, goal: Goal, again: str = "") -> None:
    """Say a plan's predicted peak and cost, and what it recomputes; the first one also where there is no terminal.

    Args:
        plan: the plan.
        goal: what the user asked for.
        again: why there is a new plan; empty for the first one.
    """
    beside = f" {BESIDE_OWN}" if plan.own_replays else ""
    plain, peak = in_unit(plan.plain_peak_bytes, goal), in_unit(plan.peak_bytes, goal)
    if not plan.segments:
        if again:
            return
        fits = f"{asked(goal)}: fits already, the plain step peaks at {plain}; nothing is recomputed{beside}"
        say(fits, everywhere=True)
        return
    what = f"planned again ({again})" if again else "plan ready"
    cost = f", about {plan.recompute_overhead:.0%} slower" if plan.plain_seconds else ""
    said = f"{what}: {plain} → {peak} ({asked(goal)}){cost}; recomputes {phrase(plan)}{beside}"
    say(said, everywhere=not again)


def applied(plan: Plan) -> None:
    """Say that a plan which the user gave is applied."""
    budget = plan.goal.budget if plan.goal is not None else None
    peak = f", predicted peak {format_like(plan.peak_bytes, budget)}" if plan.peak_bytes else ""
    say(f"plan applied{peak}; recomputes {phrase(plan)}")


def measured(peak_bytes: int, plan: Plan, goal: Goal) -> None:
    """Say the peak that the device's allocator has measured so far, now that the first planned step is over."""
    peak, predicted = in_unit(peak_bytes, goal), in_unit(plan.peak_bytes, goal)
    verdict = ""
    if goal.budget_bytes is not None:
        verdict = f", {'within' if peak_bytes <= goal.budget_bytes else 'above'} the {asked(goal)}"
    say(f"a planned step is over: measured so far {peak} at most{verdict}; predicted {predicted}")


def asked(goal: Goal) -> str:
    """Return what was asked for, as the user wrote it."""
    if goal.max_overhead is not None:
        return f"at most {goal.max_overhead:.0%} slower"
    if goal.is_minimum:
        return "budget lowest" if goal.is_lowest else "budget min"
    return f"budget {goal.budget if isinstance(goal.budget, str) else format_bytes(goal.budget or 0)}"


def in_unit(n_bytes: int, goal: Goal) -> str:
    """Write bytes in the unit in which the user asked."""
    return format_like(n_bytes, goal.budget)
