"""From a family of plans to one solution: what the simple solvers share.

Each simple solver is a *family*: a row of plans made with little or no regard to the budget. The cheapest
that fits is the answer. The lowest peak in the family is then also the least budget for which the solver
finds a plan, and more budget never costs more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import Infeasible
from .ledger import Ledger
from .pins import completed
from .problem import Problem, Solution, Status
from .simulate import simulate
from .units import format_bytes

TIME_LIMIT_SECONDS = 3.5
"""Default for all solvers, of which only `ilp` and `auto` ever need it."""

MOST_TRIMMED = 16
"""Of a family's plans within the budget, the cheapest so many are trimmed."""

Plan = tuple[int, ...]
"""Indices of chosen candidates, ascending."""


def judged(
    problem: Problem,
    chosen: Iterable[int],
    *,
    solver: str,
    lower_bound_seconds: float | None = None,
    notes: Iterable[str] = (),
) -> Solution:
    """Make a solution of `chosen` with the judge's figures.

    It is optimal where its cost meets the bound; no plan costs less than nothing, so 0 is always a bound.
    """
    plan = tuple(sorted(chosen))
    timeline = simulate(problem, plan)
    if timeline.recompute_seconds <= 0.0:
        lower_bound_seconds = 0.0
    optimal = lower_bound_seconds is not None and timeline.recompute_seconds <= lower_bound_seconds
    return Solution(
        chosen=plan,
        peak_bytes=timeline.peak_bytes,
        recompute_seconds=timeline.recompute_seconds,
        status=Status.OPTIMAL if optimal else Status.FEASIBLE,
        solver=solver,
        lower_bound_seconds=lower_bound_seconds,
        notes=tuple(notes),
    )


def infeasible(
    problem: Problem, lowest: Iterable[int], *, budget_bytes: int, solver: str, notes: Iterable[str] = ()
) -> Infeasible:
    """Make the error that says how low the plan `lowest` gets, and what stands at its peak."""
    plan = tuple(sorted(lowest))
    return Infeasible(
        budget_bytes=budget_bytes,
        minimum_bytes=simulate(problem, plan).peak_bytes,
        solver=solver,
        dominated_by=dominated_by(problem, plan),
        chosen=plan,
        notes=tuple(notes),
    )


def dominated_by(problem: Problem, plan: Plan) -> str:
    """Say at which step the peak of a plan stands, and what of it."""
    timeline = simulate(problem, plan)
    step = problem.steps[timeline.peak_step]
    held_bytes = timeline.peak_bytes - step.base_bytes
    return (
        f"step {step.name!r}, where {format_bytes(step.base_bytes)} stand that no plan changes "
        f"and {format_bytes(held_bytes)} that this plan holds or restores"
    )


def rank(ledger: Ledger, plan: Plan) -> tuple[float, int, int]:
    """Order of preference among plans that fit: seconds, then segments, then peak."""
    return ledger.seconds(plan), len(plan), ledger.peak(plan)


def trim(ledger: Ledger, plan: Sequence[int], budget_bytes: int) -> Plan:
    """Drop the segments that are not needed: those without which the peak stays within the budget.

    Where the plan itself is above the budget, those without which the peak gets no higher. The most
    expensive go first, so the way down does not depend on the budget until it is met.

    Heuristic; O(segments) evaluations.
    """
    kept = list(plan)
    limit = max(budget_bytes, ledger.peak(kept))
    for c in sorted(plan, key=lambda c: (-ledger.problem.candidates[c].recompute_seconds, -c)):
        kept.remove(c)
        peak = ledger.peak(kept)
        if peak <= limit:
            limit = max(budget_bytes, peak)
        else:
            kept.append(c)
    return tuple(sorted(kept))


def best_plan(ledger: Ledger, family: Iterable[Sequence[int]], budget_bytes: int, *, trimmed: bool) -> Plan:
    """Find the best plan of a family: the cheapest that fits, or the one with the lowest peak if none does.

    Args:
        ledger: the problem.
        family: plans; at least one. Where one lacks what the problem demands, that is added to it.
        budget_bytes: highest peak allowed.
        trimmed: whether segments that are not needed are dropped first.

    Returns:
        The best by seconds, then segments, then peak.
    """
    stated = (tuple(sorted(plan)) for plan in completed(ledger.problem, family))
    ranked = sorted((rank(ledger, plan), plan) for plan in dict.fromkeys(stated))
    fitting = [(order, plan) for order, plan in ranked if order[-1] <= budget_bytes]
    if trimmed:
        some = [plan for _, plan in fitting[:MOST_TRIMMED] or ranked]
        ranked = sorted((rank(ledger, plan), plan) for plan in {trim(ledger, plan, budget_bytes) for plan in some})
        fitting = [(order, plan) for order, plan in ranked if order[-1] <= budget_bytes]
    if fitting:
        return fitting[0][1]
    return min(ranked, key=lambda each: (each[0][-1], each[0]))[1]


def cheapest(
    ledger: Ledger, family: Iterable[Sequence[int]], *, budget_bytes: int, solver: str, trimmed: bool
) -> Solution:
    """Return the cheapest plan of a family that fits the budget; see `best_plan`.

    Raises:
        Infeasible: none fits.
    """
    plan = best_plan(ledger, family, budget_bytes, trimmed=trimmed)
    if ledger.peak(plan) > budget_bytes:
        raise infeasible(ledger.problem, plan, budget_bytes=budget_bytes, solver=solver)
    return judged(ledger.problem, plan, solver=solver)
