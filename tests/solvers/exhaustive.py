"""Brute force: every plan there is. The oracle that the solvers are held against."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from autockpt.solvers import Infeasible, Problem, Solution
from autockpt.solvers.common import infeasible, judged
from autockpt.solvers.judge import Judge

__all__ = ["judged_plans", "minimum_bytes", "optimum", "outcome", "plans", "recomputes_what_is_required"]


def optimum(problem: Problem, budget_bytes: int) -> Solution:
    """Judge every plan and return the cheapest that fits; of several the one with fewest segments, then lowest peak.

    Raises:
        Infeasible: no plan fits.

    Exact; O(plans × problem), exponential in the number of calls.
    """
    best: tuple[tuple[float, int, int], tuple[int, ...]] | None = None
    lowest: tuple[int, tuple[int, ...]] | None = None
    for plan, peak_bytes, seconds in judged_plans(problem):
        if lowest is None or peak_bytes < lowest[0]:
            lowest = (peak_bytes, plan)
        if peak_bytes <= budget_bytes:
            order = (seconds, len(plan), peak_bytes)
            if best is None or order < best[0]:
                best = (order, plan)
    if best is not None:
        (cost_seconds, _, _), plan = best
        return judged(problem, plan, solver="exhaustive", lower_bound_seconds=cost_seconds)
    assert lowest is not None, "no plan recomputes what the problem requires"
    raise infeasible(problem, lowest[1], budget_bytes=budget_bytes, solver="exhaustive")


def outcome(solver: Callable[[Problem, int], Solution], problem: Problem, budget_bytes: int) -> Solution | Infeasible:
    """What a solver returns, or raises where no plan fits."""
    try:
        return solver(problem, budget_bytes)
    except Infeasible as error:
        return error


@lru_cache(maxsize=4)  # what draws a problem asks first, and then what compares
def judged_plans(problem: Problem) -> tuple[tuple[tuple[int, ...], int, float], ...]:
    """Every plan with its peak in bytes and its recompute seconds, from one judge."""
    judge = Judge(problem)
    return tuple((plan, judge.peak(plan), judge.seconds(plan)) for plan in plans(problem))


def minimum_bytes(problem: Problem) -> int:
    """Lowest peak that any plan reaches."""
    return min(peak_bytes for _, peak_bytes, _ in judged_plans(problem))


def plans(problem: Problem) -> list[tuple[int, ...]]:
    """Every set of candidates that do not overlap and recompute what is required."""
    found: list[tuple[int, ...]] = [()]
    for c in sorted(range(len(problem.candidates)), key=lambda c: problem.candidates[c].start):
        start = problem.candidates[c].start
        found += [(*plan, c) for plan in found if not plan or problem.candidates[plan[-1]].stop <= start]
    return [plan for plan in found if recomputes_what_is_required(problem, plan)]


def recomputes_what_is_required(problem: Problem, plan: tuple[int, ...]) -> bool:
    """Whether every required call lies in a candidate of the plan."""
    spans = [(problem.candidates[c].start, problem.candidates[c].stop) for c in plan]
    return all(any(start <= call < stop for start, stop in spans) for call in problem.required)
