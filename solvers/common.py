"""What all solvers share: how plans are compared, and how a plan becomes a solution or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .deadline import NEVER, Deadline
from .errors import Infeasible
from .judge import Judge, simulate
from .problem import Problem, Solution, Status
from .units import format_bytes

SECONDS = 3.0  # default for all solvers, of which only `ilp` and `auto` ever need it
MOST_DROPPED = 400  # how many segments of a plan may be tried for dropping, the most expensive first
MOST_TRIMMED = 16  # how many of a solver's plans are trimmed, the best first
LARGE_SIZE = 500_000  # saves, holds and additions from which on the instant solvers take seconds

Plan = tuple[int, ...]
"""Indices of chosen candidates, ascending."""


def patient(judge: Judge, deadline: Deadline) -> Deadline:
    """Return the deadline of the instant solvers: only on large problems do they need one."""
    return deadline if judge.size > LARGE_SIZE else NEVER


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
    """Make the error that says how low the plan `lowest` gets, and what its peak consists of."""
    plan, where = tuple(sorted(lowest)), dominated_by(problem, tuple(sorted(lowest)))
    peak_bytes, said = simulate(problem, plan).peak_bytes, tuple(notes)
    return Infeasible(
        budget_bytes=budget_bytes, minimum_bytes=peak_bytes, solver=solver, dominated_by=where, chosen=plan, notes=said
    )


def dominated_by(problem: Problem, plan: Plan) -> str:
    """Say at which step a plan has its peak, and how much of the peak the plan can change."""
    timeline = simulate(problem, plan)
    step = problem.steps[timeline.peak_step]
    held_bytes = timeline.peak_bytes - step.base_bytes
    return (
        f"step {step.name!r}, where {format_bytes(step.base_bytes)} stand that no plan changes "
        f"and {format_bytes(held_bytes)} that this plan holds or restores"
    )


def trim(judge: Judge, plan: Sequence[int], budget_bytes: int, *, deadline: Deadline = NEVER) -> Plan:
    """Drop segments that are not needed, until time is up: without them the peak stays within the budget.

    If the plan itself is above the budget, without them the peak gets no higher. The most expensive are tried first, so
    that the order does not depend on the budget.

    Heuristic; O(segments) evaluations.
    """
    kept = list(plan)
    limit_bytes = max(budget_bytes, judge.peak(kept))
    for c in sorted(plan, key=lambda c: (-judge.problem.candidates[c].recompute_seconds, -c))[:MOST_DROPPED]:
        if deadline.passed:
            break
        kept.remove(c)
        peak_bytes = judge.peak(kept)
        if peak_bytes <= limit_bytes:
            limit_bytes = max(budget_bytes, peak_bytes)
        else:
            kept.append(c)
    return tuple(sorted(kept))


def ordered(judge: Judge, plans: Iterable[Plan], budget_bytes: int) -> list[Plan]:
    """Sort plans: those that fit by seconds, then segments, then peak; after them the others, the lowest peak first."""

    def preference(plan: Plan) -> tuple[int, float, int, int, Plan]:
        peak_bytes = judge.peak(plan)
        return max(peak_bytes, budget_bytes), judge.seconds(plan), len(plan), peak_bytes, plan

    return sorted(plans, key=preference)


def best_plan(
    judge: Judge,
    found: Mapping[Plan, str],
    budget_bytes: int,
    *,
    trimmed: int = MOST_TRIMMED,
    deadline: Deadline = NEVER,
) -> tuple[Plan, str]:
    """Return the best of at least one plan, and its solver; the best `trimmed` plans first lose segments not needed."""
    best = ordered(judge, found, budget_bytes)
    if trimmed:
        lean: dict[Plan, str] = {}
        for plan in best[:trimmed]:
            lean.setdefault(trim(judge, plan, budget_bytes, deadline=deadline), found[plan])
        best, found = ordered(judge, lean, budget_bytes), lean
    return best[0], found[best[0]]
