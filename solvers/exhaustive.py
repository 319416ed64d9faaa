"""Brute force: every set of candidates that do not overlap. The oracle that tests hold the others against."""

from __future__ import annotations

from .errors import ProblemTooLarge
from .families import TIME_LIMIT_SECONDS, infeasible, judged
from .problem import Problem, Solution
from .simulate import simulate

__all__ = ["count_plans", "solve"]

MAX_PLANS = 200_000
"""More plans than this are refused: at some 20 µs a plan it is a few seconds on a small problem."""


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Judge every plan and return the cheapest that fits.

    Args:
        problem: a small problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: not looked at; `MAX_PLANS` bounds the time.

    Returns:
        The optimum; of several the one with fewest segments, then the lowest peak.

    Raises:
        Infeasible: no plan fits.
        ProblemTooLarge: there are more than `MAX_PLANS` plans.

    Exact; O(plans × problem), exponential in the number of calls.
    """
    n_plans = count_plans(problem)
    if n_plans > MAX_PLANS:
        raise ProblemTooLarge(
            f"solver 'exhaustive' judges every plan, and this problem has {n_plans:.3g} of them (at most "
            f"{MAX_PLANS:,} are accepted); use solver 'ilp', which is exact too"
        )
    best: tuple[tuple[float, int, int], tuple[int, ...]] | None = None
    lowest: tuple[int, tuple[int, ...]] | None = None
    for plan in _plans(problem):
        timeline = simulate(problem, plan)
        if lowest is None or timeline.peak_bytes < lowest[0]:
            lowest = (timeline.peak_bytes, plan)
        if timeline.peak_bytes <= budget_bytes:
            order = (timeline.recompute_seconds, len(plan), timeline.peak_bytes)
            if best is None or order < best[0]:
                best = (order, plan)
    if best is not None:
        (cost_seconds, _, _), plan = best
        return judged(problem, plan, solver="exhaustive", lower_bound_seconds=cost_seconds)
    raise infeasible(problem, lowest[1] if lowest else (), budget_bytes=budget_bytes, solver="exhaustive")


def count_plans(problem: Problem) -> int:
    """Number of sets of candidates that do not overlap, the empty one included."""
    by_start = _by_start(problem)
    from_call = [1] * (len(problem.calls) + 1)  # plans that cover only calls from here on
    for call in range(len(problem.calls) - 1, -1, -1):
        stops = (problem.candidates[c].stop for c in by_start[call])
        from_call[call] = from_call[call + 1] + sum(from_call[stop] for stop in stops)
    return from_call[0]


def _plans(problem: Problem) -> list[tuple[int, ...]]:
    """Every plan, built from the last call to the first: leave the call alone, or start a candidate there."""
    by_start = _by_start(problem)
    from_call: list[list[tuple[int, ...]]] = [[()] for _ in range(len(problem.calls) + 1)]
    for call in range(len(problem.calls) - 1, -1, -1):
        started = [(c, *rest) for c in by_start[call] for rest in from_call[problem.candidates[c].stop]]
        from_call[call] = from_call[call + 1] + started if started else from_call[call + 1]
    return from_call[0]


def _by_start(problem: Problem) -> list[list[int]]:
    by_start: list[list[int]] = [[] for _ in problem.calls]
    for c, candidate in enumerate(problem.candidates):
        by_start[candidate.start].append(c)
    return by_start
