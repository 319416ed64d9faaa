"""`solve`: from a profile and what is asked of it to a plan. No torch."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from .._data.errors import NotApplicable
from .._data.goal import NO_PINS, SECONDS, Asked, Goal, Patterns, Pins
from .._data.offload import Offload
from .._data.plan import Plan, Refusal, Segment
from .._data.profile import Profile, refuse_no_profile
from ..solvers import Infeasible, Solution, simulate
from ..solvers.common import judged
from ..solvers.deadline import Deadline, Progress
from ..solvers.errors import TooCostly
from ..solvers.lowest import least_peak_until
from ..solvers.registry import SEARCHING, named, solve_until
from .bound import lay_out, least_seconds
from .candidates import Candidates, find_candidates
from .candidates.from_plan import find_planned
from .peak_breakdown import advise, peak_parts
from .pins import pin

_log = logging.getLogger("autockpt")

CANDIDATES_SHARE = 2 / 3
"""Candidates may take this share of the seconds that the solver has, before it begins; once they are up, candidates are
coarser. These are seconds of the processor: on a busy machine a plan is as good, and comes later."""

MOVING = 2.5
"""Where tensors may wait elsewhere, so many times as long a search may take in all."""

CLOSE = 1e-6
"""Share by which a lower bound may lie above a plan's cost for want of digits."""


def solve(
    profile: Profile,
    budget: int | str | None = None,
    *,
    max_overhead: float | None = None,
    solver: str = "auto",
    seconds: float = SECONDS,
    total_bytes: int | None = None,
    keep: Patterns = (),
    recompute: Patterns = (),
    offload: str | Offload | None = None,
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
        seconds: how long the solver may search; the best plan found by then is returned. Finding candidates before it
            takes two thirds of that at most, of the processor: 5 s in all by default. With more candidates than they
            can look at the plan is coarser, and says so in its notes. How near it comes to what is possible takes up to
            a second more. Planning logs how far it is from two seconds on, at level INFO.
        total_bytes: memory of the device, for a budget in percent.
        keep: patterns of calls of which nothing must run again: qualified names, in which ``*`` stands for anything,
            dots too; ``"h.3.mlp#1"`` is the second call of a module.
        recompute: patterns of calls that must run again, by themselves or inside a larger segment.
        offload: where tensors may wait off the device from forward to backward, where that is cheaper than to recompute
            them: ``"host"``, or a folder. Copies to the host run beside the computing, and cost what the device waits
            for them; the step waits for a file. Their rate is what was measured, or else 25 GB/s to the host and 1 GB/s
            to a folder, or what is given, ``"host@50GB/s"``. The search takes longer then:
            two and a half times `seconds`. None for nowhere.

    Returns:
        The plan; its predictions are the judge's.

    Raises:
        AutockptError: ``ilp`` was asked, and what solves integer programmes is not installed or fails.
        BudgetError: the budget does not parse, or not exactly one of budget and overhead is given.
        Infeasible: this solver finds no plan within the budget; carries the minimum reachable bytes, with the pins
            and without, what they consist of, what would help, and the plan that reaches them.
        NotApplicable: what is given is no profile.
        PinError: a pattern matches no call, or no plan can honour the pins.
        TooCostly: all plans of this solver that honour the pins have a higher recompute overhead.
        UnknownSolver: there is no such solver.

    Example:
        >>> import torch, autockpt
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        >>> autockpt.solve(autockpt.profile(model, torch.randn(64, 8)), "1GB").segments
        ()
    """
    refuse_no_profile(profile)
    goal = Goal.of(budget, max_overhead, total_bytes=total_bytes)
    pins = Pins.of(keep, recompute)
    return choose(
        profile,
        Asked(goal=goal, solver=solver, seconds=seconds, pins=pins, offload=Offload.read(offload, profile.offload)),
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
def choose(
    profile: Profile,
    asked: Asked,
    *,
    found: Candidates | None = None,
    bounded: bool = True,
    clock: Callable[[], float] | None = None,
) -> Plan:
    """Choose what to recompute among what was `found`, if anything was, in the time that is asked; see `solve`.

    Says how near the choice comes to what is possible where that is to be `bounded`, which takes up to `BOUND_SECONDS`
    more. Logs how far it is from two seconds on.
    """
    named(asked.solver)
    progress, most_seconds = Progress(_log.info, clock), asked.goal.most_seconds(profile.plain_seconds)
    if found is None:
        looking = for_candidates(asked.seconds, progress, clock)
        found = find_candidates(profile, deadline=looking, offload=asked.offload)
    candidates = pin(found, asked.pins)
    deadline = Deadline.after(asked.seconds, clock=clock, progress=progress)
    if candidates.offload is None:
        solution = _solution(found, candidates, most_seconds, asked, deadline)
    else:
        candidates, solution = _moving(found, candidates, most_seconds, asked, deadline)
    budget_bytes = asked.goal.budget_bytes or solution.peak_bytes
    known: float | None = 0.0
    if solution.chosen:
        deadline.tell("how little any method would recompute")
        bounds = bounded and asked.offload is None  # the bound knows of no moves
        known = least_seconds(*lay_out(candidates.index), budget_bytes) if bounds else None
    stated = make_plan(candidates, solution, budget_bytes=budget_bytes, lower_bound_seconds=known, pins=asked.pins)
    return msgspec.structs.replace(stated, goal=asked.goal)


def restate(plan: Plan, profile: Profile, asked: Asked) -> Plan | None:
    """Return a plan that was made from another profile as one for this, its figures those of this one's judge.

    None where the recorded step makes other calls, or the plan does not keep it to what is asked.
    """
    try:
        candidates = find_planned(profile, plan)
    except NotApplicable:
        return None
    solution = candidates.judged(judged(candidates.problem, range(len(candidates.replays)), solver=plan.solver))
    budget_bytes = asked.goal.budget_bytes or solution.peak_bytes
    if solution.peak_bytes > budget_bytes:
        return None
    if solution.recompute_seconds > asked.goal.most_seconds(profile.plain_seconds):
        return None
    made = make_plan(candidates, solution, budget_bytes=budget_bytes, lower_bound_seconds=None, pins=asked.pins)
    return msgspec.structs.replace(made, goal=asked.goal, refused=plan.refused)


def for_candidates(seconds: float, progress: Progress, clock: Callable[[], float] | None = None) -> Deadline:
    """The deadline of candidates whose solver may search for so many seconds."""
    return Deadline.after(CANDIDATES_SHARE * seconds, clock=clock or time.thread_time, progress=progress)


def _solution(
    found: Candidates, candidates: Candidates, most_seconds: float, asked: Asked, deadline: Deadline
) -> Solution:
    """The solver's choice among candidates that pins may have left of those found; its errors carry what would help."""
    problem, budget_bytes, budget = candidates.problem, asked.goal.budget_bytes, asked.goal.budget
    try:
        if budget_bytes is None:
            return least_peak_until(problem, most_seconds=most_seconds, solver=asked.solver, deadline=deadline)
        return solve_until(problem, budget_bytes, solver=asked.solver, deadline=deadline)
    except TooCostly as error:
        plan, plain_seconds = _carried(candidates, error, asked), candidates.index.profile.plain_seconds
        raise error.carrying(plan=plan, plain_seconds=plain_seconds, pins=tuple(asked.pins)) from None
    except Infeasible as error:
        if error.chosen is None or budget_bytes is None:
            raise
        unpinned_bytes = _minimum_bytes(found, asked, deadline) if asked.pins else None
        parts = peak_parts(candidates, error.chosen)
        raise error.carrying(
            plan=_carried(candidates, error, asked),
            notes=(*candidates.notes, *error.notes),
            pins=tuple(asked.pins),
            unpinned_minimum_bytes=unpinned_bytes,
            parts=parts,
            advice=tuple(advise(parts, budget_bytes, unpinned_bytes=unpinned_bytes, solver=asked.solver, asked=budget)),
            asked=budget if isinstance(budget, str) else "",
        ) from None


def _moving(
    found: Candidates, candidates: Candidates, most_seconds: float, asked: Asked, deadline: Deadline
) -> tuple[Candidates, Solution]:
    """Choose what to recompute, and then what to move instead; with the candidates of which the choice is.

    A budget that recomputing alone meets has a plan to begin from. For any other, and for the lowest peak, moves are
    candidates as others are, for which the step waits; some of them may then be made beside the computing.
    """
    best: Solution | None = None
    later = deadline.again(MOVING * asked.seconds)
    pinned = candidates.offload is not None and bool(candidates.offload.pins)  # without moves there is no plan then
    if asked.goal.budget_bytes is not None and not pinned:
        with contextlib.suppress(Infeasible):
            best = _solution(found, candidates.staying(), most_seconds, asked, later.share(0.6))
    if best is None or asked.solver not in SEARCHING:
        waiting = candidates.waiting()
        solution = waiting.judged(_solution(found, waiting, most_seconds, asked, later.share(0.5)))
        if best is None and solution.status.value != "optimal" and not pinned:
            with contextlib.suppress(Infeasible, TooCostly):  # it looks among fewer
                best = _solution(found, candidates.staying(), most_seconds, asked, later.share(0.5))
        best = solution if best is None else min(solution, best, key=lambda each: _worth(each, asked))
    if asked.solver not in SEARCHING or (best.status.value == "optimal" and not best.recompute_seconds):
        return candidates, best
    budget_bytes = asked.goal.budget_bytes or best.peak_bytes
    return candidates.beside(best, budget_bytes, solver=asked.solver, deadline=later)


def _worth(solution: Solution, asked: Asked) -> tuple[float, ...]:
    """What makes one solution better than another: its cost, or where the lowest peak is asked for that before it."""
    budget_bytes = asked.goal.budget_bytes
    return (0 if budget_bytes else solution.peak_bytes, solution.recompute_seconds)


def _minimum_bytes(candidates: Candidates, asked: Asked, deadline: Deadline) -> int:
    """Lowest peak that a solver reaches."""
    try:
        least = solve_until(candidates.problem, 1, solver=asked.solver, deadline=deadline)
    except Infeasible as error:
        return error.minimum_bytes
    return least.peak_bytes


def _carried(candidates: Candidates, error: Infeasible | TooCostly, asked: Asked) -> Plan:
    """State as a plan what an error carries; its budget is its own peak."""
    notes = error.notes if isinstance(error, Infeasible) else ()
    solution = candidates.judged(judged(candidates.problem, error.chosen or (), solver=error.solver, notes=notes))
    peak_bytes = solution.peak_bytes
    return make_plan(candidates, solution, budget_bytes=peak_bytes, lower_bound_seconds=None, pins=asked.pins)


def make_plan(
    candidates: Candidates,
    solution: Solution,
    *,
    budget_bytes: int,
    lower_bound_seconds: float | None,
    pins: Pins = NO_PINS,
) -> Plan:
    """State a solution as a plan; its predictions are the judge's.

    A lower bound is on what any method recomputes that keeps to the budget; one above the judge's cost of the solution
    is wrong, and left out.
    """
    index = candidates.index
    profile, segments = index.profile, segments_of(candidates, solution.chosen)
    return Plan(
        model=profile.model,
        segments=segments,
        solver=solution.solver,
        status="optimal" if solution.status.value == "optimal" else "feasible",
        budget_bytes=budget_bytes,
        peak_bytes=solution.peak_bytes,
        plain_peak_bytes=simulate(candidates.problem, ()).peak_bytes,
        recompute_seconds=solution.recompute_seconds,
        plain_seconds=profile.plain_seconds,
        lower_bound_seconds=believed(lower_bound_seconds, solution),
        choice_bound_seconds=solution.lower_bound_seconds,
        profile_mode=profile.mode,
        offload=candidates.offload if any(segment.offload for segment in segments) else None,
        pinned_keep=pins.keep,
        pinned_recompute=pins.recompute,
        refused=tuple(Refusal(call=index.nodes[call].key, reason=reason) for call, reason in candidates.refused),
        notes=(*profile.notes, *candidates.notes, *solution.notes),
    )


def believed(lower_bound_seconds: float | None, solution: Solution) -> float | None:
    """A lower bound on what any method recomputes, unless the solution shows that it is wrong."""
    most_seconds = solution.recompute_seconds * (1 + CLOSE)
    return lower_bound_seconds if lower_bound_seconds is None or lower_bound_seconds <= most_seconds else None


def segments_of(candidates: Candidates, chosen: Iterable[int]) -> tuple[Segment, ...]:
    """Return what candidates stand for, as a plan names it."""
    return tuple(candidates.replays[i].segment for i in chosen)
