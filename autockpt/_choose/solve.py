"""`solve`: from a profile and what is asked of it to a plan. No torch."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterable, Iterator

from .._data.goal import Goal
from .._data.plan import Plan, Refusal, Segment
from .._data.profile import Profile
from ..solvers import Infeasible, Solution, least_peak, simulate
from ..solvers import solve as solve_problem
from ..solvers.common import judged
from ..solvers.errors import TooCostly
from .bound import least_recompute_seconds
from .candidates import Candidates, find_candidates
from .peak_breakdown import advise, peak_parts
from .pins import Patterns, named_pins, pin

CLOSE = 1e-6
"""Share by which a lower bound may lie above a plan's cost for want of digits."""


def solve(
    profile: Profile,
    budget: int | str | None = None,
    *,
    max_overhead: float | None = None,
    solver: str = "auto",
    time_limit_seconds: float = 3.0,
    total_bytes: int | None = None,
    keep: Patterns = (),
    recompute: Patterns = (),
) -> Plan:
    """Choose what to recompute so that the predicted peak of the whole step stays within `budget`, or is the lowest.

    Args:
        profile: the recorded step.
        budget: bytes, ``"8GB"`` (8·10⁹), ``"8GiB"`` (8·2³⁰), or ``"80%"`` of `total_bytes`, for the cheapest plan
            within it; ``"min"`` for the lowest peak that the solver reaches, and the cheapest plan that has it.
        max_overhead: instead of a budget, the highest recompute overhead, a ratio such as 0.15, for the lowest peak
            within it.
        solver: a name in ``autockpt.solvers.SOLVERS``. The lowest peak is the lowest among the plans that it makes:
            ``none`` has one plan, the plain one, and ``all`` one that may be too costly.
        time_limit_seconds: how long the solver may search; the best plan found by then is returned. With
            `max_overhead` some tenths of a second for each of about ten budgets come on top.
        total_bytes: memory of the device, for a budget in percent.
        keep: patterns of calls that must not run again: qualified names, in which ``*`` stands for anything, dots
            too; ``"h.3.mlp#1"`` is the second call of a module. A segment around one may keep it as a unit.
        recompute: patterns of calls that must run again, by themselves or inside a larger segment.

    Returns:
        The plan; its predictions are the judge's.

    Raises:
        AutockptError: ``ilp`` was asked, and what solves integer programmes is not installed or fails.
        BudgetError: the budget does not parse, or not exactly one of budget and overhead is given.
        Infeasible: this solver finds no plan within the budget; carries the minimum reachable bytes, with the pins
            and without, what they consist of, what would help, and the plan that reaches them.
        PinError: a pattern matches no call, or no plan can honour the pins.
        TooCostly: all plans of this solver that honour the pins have a higher recompute overhead.
        UnknownSolver: there is no such solver.

    Example:
        >>> import torch, autockpt
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        >>> autockpt.solve(autockpt.profile(model, torch.randn(64, 8)), "1GB").segments
        ()
    """
    return solve_for(
        profile,
        Goal.of(budget, max_overhead, total_bytes=total_bytes),
        solver=solver,
        time_limit_seconds=time_limit_seconds,
        keep=keep,
        recompute=recompute,
    )


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """Let the collector of cycles wait: going through what a search makes takes a fifth of its time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@_no_collecting()
def solve_for(
    profile: Profile,
    goal: Goal,
    *,
    solver: str = "auto",
    time_limit_seconds: float = 3.0,
    keep: Patterns = (),
    recompute: Patterns = (),
    found: Candidates | None = None,
    bounded: bool = True,
) -> Plan:
    """Choose what to recompute for a goal, among what was `found` before, if anything was; see `solve`.

    Says how near the choice comes to what is possible where that is to be `bounded`.
    """
    most_seconds = goal.most_seconds(profile.plain_seconds)
    found = found or find_candidates(profile)
    candidates = pin(found, keep=keep, recompute=recompute)
    if goal.budget_bytes is not None:
        solution = _within(profile, found, candidates, goal.budget_bytes, solver, time_limit_seconds)
        budget_bytes = goal.budget_bytes
    else:
        solution = _lowest(profile, candidates, most_seconds, solver, time_limit_seconds)
        budget_bytes = solution.peak_bytes
    bound_seconds: float | None = 0.0
    if solution.chosen:
        bound_seconds = least_recompute_seconds(profile, budget_bytes) if bounded else None
    return make_plan(candidates, solution, budget_bytes=budget_bytes, lower_bound_seconds=bound_seconds, goal=goal)


def _within(
    profile: Profile,
    found: Candidates,
    candidates: Candidates,
    budget_bytes: int,
    solver: str,
    time_limit_seconds: float,
) -> Solution:
    """The cheapest plan within a budget, among candidates that pins may have left of those found."""
    try:
        return solve_problem(candidates.problem, budget_bytes, solver=solver, seconds=time_limit_seconds)
    except Infeasible as error:
        if error.chosen is None:
            raise
        unpinned_bytes = None if candidates is found else _minimum_bytes(found, solver, time_limit_seconds)
        parts = peak_parts(profile, candidates, error.chosen)
        raise error.carrying(
            plan=_plan_of(candidates, error.chosen, error.solver, error.notes),
            pins=named_pins(candidates),
            unpinned_minimum_bytes=unpinned_bytes,
            parts=parts,
            advice=tuple(advise(parts, budget_bytes, unpinned_bytes=unpinned_bytes, solver=solver)),
        ) from None


def _lowest(
    profile: Profile, candidates: Candidates, most_seconds: float, solver: str, time_limit_seconds: float
) -> Solution:
    """The plan with the lowest peak within so many recompute seconds."""
    try:
        return least_peak(candidates.problem, most_seconds=most_seconds, solver=solver, seconds=time_limit_seconds)
    except TooCostly as error:
        raise error.carrying(
            plan=_plan_of(candidates, error.chosen, error.solver),
            plain_seconds=profile.plain_seconds,
            pins=named_pins(candidates),
        ) from None


def _minimum_bytes(candidates: Candidates, solver: str, time_limit_seconds: float) -> int:
    """Lowest peak that a solver reaches."""
    try:
        return solve_problem(candidates.problem, 1, solver=solver, seconds=time_limit_seconds).peak_bytes
    except Infeasible as error:
        return error.minimum_bytes


def _plan_of(candidates: Candidates, chosen: Iterable[int], solver: str, notes: Iterable[str] = ()) -> Plan:
    """State as a plan what an error carries; its budget is its own peak."""
    solution = judged(candidates.problem, chosen, solver=solver, notes=notes)
    return make_plan(candidates, solution, budget_bytes=solution.peak_bytes, lower_bound_seconds=None)


def make_plan(
    candidates: Candidates,
    solution: Solution,
    *,
    budget_bytes: int,
    lower_bound_seconds: float | None,
    goal: Goal | None = None,
) -> Plan:
    """State a solution as a plan.

    Args:
        candidates: what the solution chose from.
        solution: the choice.
        budget_bytes: the peak that it keeps to.
        lower_bound_seconds: no method that keeps to it recomputes less; None if no bound is known. One above the
            judge's cost of the solution is wrong, and left out.
        goal: what was asked for.

    Returns:
        The plan; its predictions are the judge's.
    """
    profile = candidates.profile
    return Plan(
        model=profile.model,
        segments=segments_of(candidates, solution.chosen),
        solver=solution.solver,
        status="optimal" if solution.status.value == "optimal" else "feasible",
        goal=goal,
        budget_bytes=budget_bytes,
        peak_bytes=solution.peak_bytes,
        plain_peak_bytes=simulate(candidates.problem, ()).peak_bytes,
        recompute_seconds=solution.recompute_seconds,
        plain_seconds=profile.plain_seconds,
        lower_bound_seconds=believed(lower_bound_seconds, solution),
        choice_bound_seconds=_finite(solution.lower_bound_seconds),
        profile_mode=profile.mode,
        pinned_keep=candidates.pinned_keep,
        pinned_recompute=candidates.pinned_recompute,
        refused=tuple(Refusal(call=profile.calls[call].key, reason=reason) for call, reason in candidates.refused),
        notes=(*profile.notes, *solution.notes),
    )


def believed(lower_bound_seconds: float | None, solution: Solution) -> float | None:
    """A lower bound on what any method recomputes, unless the solution shows that it is wrong."""
    most_seconds = solution.recompute_seconds * (1 + CLOSE)
    return lower_bound_seconds if lower_bound_seconds is None or lower_bound_seconds <= most_seconds else None


def segments_of(candidates: Candidates, chosen: Iterable[int]) -> tuple[Segment, ...]:
    """Name what candidates stand for, as a plan does.

    Args:
        candidates: the candidates.
        chosen: indices of those that are wanted.

    Returns:
        A segment for each.
    """
    return tuple(_segment(candidates, index) for index in chosen)


def _segment(candidates: Candidates, index: int) -> Segment:
    """Name the calls of a chosen candidate."""
    run, calls = candidates.runs[index], candidates.profile.calls
    return Segment(
        calls=tuple(calls[member].key for member in run.members),
        parent=calls[calls[run.members[0]].parent].key,
        buffers=run.buffers,
        keep=run.idle.keep,
        skip=run.idle.skip,
        linked=tuple(
            calls[member].key
            for position, member in enumerate(run.members)
            if any(not set(run.members[:position]).isdisjoint(a.sources) for a in calls[member].arguments)
        ),
        recompute_seconds=candidates.problem.candidates[index].recompute_seconds,
        freed_bytes=run.freed_bytes,
        boundary_bytes=run.boundary_bytes,
        kept_bytes=run.kept_bytes,
    )


def _finite(seconds: float | None) -> float | None:
    """A bound that is none at all (minus infinity) is no bound."""
    return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0 else None
