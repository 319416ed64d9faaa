"""`solve`: turns a profile and a request into a plan. No torch."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec

from .._data.errors import NotApplicable
from .._data.goal import NO_PINS, SECONDS, Asked, Goal, Patterns, Pins
from .._data.hardware.paces import host_mode
from .._data.offload import Offload
from .._data.plan import Plan, Refusal, Segment
from .._data.profile import Profile, refuse_no_profile
from ..solvers import Infeasible, Solution, simulate
from ..solvers.common import judged
from ..solvers.deadline import Deadline, Progress
from ..solvers.errors import TooCostly
from ..solvers.registry import SEARCHING, named, solve_until
from ..solvers.sweeps.lowest import least_peak_until
from .below import Choice, with_runs_in_parts, worth
from .by_clocks import choose_by_clocks
from .candidates import Candidates
from .candidates.by_hand import runs_of_layers
from .candidates.from_plan import find_planned
from .candidates.search import find_candidates
from .moving import choose_moves
from .pinned.pins import with_pins
from .predict.bound import lay_out, least_seconds
from .predict.peak_breakdown import advise, peak_parts

_log = logging.getLogger("autockpt")

CANDIDATES_SHARE = 2 / 3
"""Before the solver starts, finding candidates may take this share of the solver's seconds. When they are up, the
candidates are coarser. They are CPU seconds: on a busy machine the plan is as good, but comes later."""

CLOSE = 1e-6
"""Relative tolerance: through rounding, a lower bound may lie this far above a plan's cost."""


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
    offload: str | os.PathLike[str] | Offload | None = None,
) -> Plan:
    """Choose what to recompute so that the predicted peak of the whole step stays within `budget`, or is the lowest.

    Args:
        profile: the recorded step.
        budget: bytes, ``"8GB"`` (8·10⁹), ``"8GiB"`` (8·2³⁰), or ``"80%"`` of `total_bytes`, for the cheapest plan
            within it; ``"min"`` for the lowest peak that the solver reaches at one level of recomputing, and the
            cheapest plan that has it; ``"lowest"`` for the lowest of all, which may take several plain steps.
        max_overhead: instead of a budget, the highest recompute overhead, a ratio such as 0.15, for the lowest peak
            within it.
        solver: a name in ``autockpt.solvers.SOLVERS``, or ``uniform:4`` or ``block:4`` for so many layers. The lowest
            peak is the lowest among the plans that this solver makes. ``none`` makes only the plain plan; ``all`` makes
            one plan, which may cost more than `max_overhead`.
        seconds: how long the solver may search; the best plan found by then is returned. Before that, finding
            candidates takes up to two thirds as many CPU seconds: 5 s in all by default. If time runs out, the plan is
            coarser, and its notes say so. The lower bound on what any method would recompute takes up to a second more.
            From two seconds on, progress is logged at level INFO.
        total_bytes: memory of the device, for a budget in percent.
        keep: patterns of calls of which no part must run again. A pattern is a qualified name in which ``*`` matches
            anything, dots too; ``"h.3.mlp#1"`` is the second call of a module. ``"*.attn/softmax"`` names torch
            functions that the code of modules calls, and ``""``, or the model's class, the model itself.
        recompute: patterns of calls that must run again, each as a segment of its own, which holds its own boundary;
            where that frees nothing, inside the smallest segment that does. Functions run again in the call whose code
            calls them, with what makes what they read; all else in it is kept. The model is one run of its calls.
        offload: where tensors may wait off the device from forward to backward, where that is cheaper than to recompute
            them: ``"host"``, or a folder. Copies to the host run beside the computing, and cost what the device waits
            for them; the step waits for a file. Their rate is what was measured, or else 25 GB/s to the host and 1 GB/s
            to a folder, or what is given, ``"host@50GB/s"``. The search takes longer then:
            two and a half times `seconds`. None for nowhere.

    Returns:
        The plan; its predictions are the judge's.

    Raises:
        AutockptError: ``ilp`` was asked for, and HiGHS, which solves integer programmes, is not installed or fails.
        BudgetError: the budget does not parse, or not exactly one of budget and overhead is given.
        Infeasible: this solver finds no plan within the budget; carries the minimum reachable bytes, with the pins
            and without, what they consist of, what would help, and the plan that reaches them.
        NotApplicable: `profile` is no profile.
        PinError: a pattern matches nothing, or no plan can honour the pins.
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
    """Pause Python's garbage collector: scanning the objects that a search makes would take a fifth of its time."""
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
    """Choose what to recompute; see `solve`.

    Candidates are looked for unless they are given as `found`. If `bounded`, the plan carries a lower bound on what any
    method would recompute, which takes up to `BOUND_SECONDS` more. Progress is logged from two seconds on.
    """
    named(asked.solver)
    progress = Progress(_log.info, clock)
    if found is None:
        looking = for_candidates(asked.seconds, progress, clock)
        found = find_candidates(profile, deadline=looking, offload=asked.offload, solver=asked.solver)
    found = with_layers(found, asked.solver)

    began = Deadline.after(asked.seconds, clock=clock, progress=progress)
    candidates, solution = _best(found, asked, began)
    budget_bytes = asked.goal.budget_bytes or solution.peak_bytes
    plan = make_plan(candidates, solution, budget_bytes=budget_bytes, lower_bound_seconds=None, pins=asked.pins)
    known: float | None = 0.0
    if solution.chosen:
        began.tell("how little any method would recompute")
        bounds = bounded and asked.offload is None  # the bound does not model moves
        known = least_seconds(*lay_out(candidates.index), budget_bytes) if bounds else None
    return msgspec.structs.replace(plan, goal=asked.goal, lower_bound_seconds=sound_bound(known, solution))


def _best(found: Candidates, asked: Asked, began: Deadline) -> Choice:
    """Choose among what was found, and once more with runs in parts where that may do better; return the better one.

    Args:
        found: what was found, before pins.
        asked: what is asked.
        began: whose clock and progress all searches have.
    """
    every: Candidates | None = found
    best: Choice | None = None
    missed: Infeasible | None = None
    while every is not None:
        try:
            choice = _at_level(every, asked, began.again(asked.seconds))
            best = choice if best is None or worth(choice[1], asked) < worth(best[1], asked) else best
        except Infeasible as error:
            if missed is None:
                missed = error
            elif error.minimum_bytes < missed.minimum_bytes:
                missed = error.carrying(one_level=missed.plan)
        again = every is found and _one_level_is_not_enough(found, asked, best or missed)
        every = with_runs_in_parts(found, for_candidates(asked.seconds, began.progress, began.clock)) if again else None
    try:
        if best is None and missed is not None:
            raise missed
    finally:
        missed = None  # its traceback refers to this frame, and that to all candidates
    assert best is not None
    return best


def _one_level_is_not_enough(found: Candidates, asked: Asked, one_level: Choice | Infeasible | None) -> bool:
    """Whether to look at runs in parts too: one level does not do what is asked, and a plan with parts might.

    Args:
        found: what was found, before pins.
        asked: what is asked.
        one_level: what was chosen at one level; the error if there is no plan.
    """
    if one_level is None or asked.solver not in SEARCHING:
        return False
    if isinstance(one_level, Infeasible):
        wanted_bytes = one_level.minimum_bytes - 1  # the error names the lowest peak of all
    else:
        candidates, solution = one_level
        waits = any(candidates.replays[i].segment.waits_for_copies for i in solution.chosen)
        if not (asked.goal.is_lowest or (waits and asked.goal.budget_bytes)):
            return False
        wanted_bytes = asked.goal.budget_bytes or solution.peak_bytes - 1
    return wanted_bytes >= max(step.base_bytes for step in found.problem.steps)  # which no decision changes


def _at_level(every: Candidates, asked: Asked, deadline: Deadline) -> Choice:
    """Choose among those candidates that pins leave: with moves, on two clocks, or by what the solver finds alone."""
    most_seconds, allowed = asked.goal.most_seconds(every.plain_seconds), with_pins(every, asked.pins)

    def search(those: Candidates, until: Deadline, budget_bytes: int | None = None) -> Solution:
        wanted = asked if budget_bytes is None else replace(asked, goal=Goal.of(budget_bytes))
        return _solution(every, those, most_seconds, wanted, until)

    if allowed.offload is not None:
        return choose_moves(allowed, asked, deadline, search)
    if allowed.paces is not None:
        return allowed, choose_by_clocks(allowed, asked, deadline, search)
    return allowed, search(allowed, deadline)


def with_layers(found: Candidates, solver: str) -> Candidates:
    """Return the candidates with the segments of so many layers that a solver such as ``uniform:5`` makes."""
    return found.having(runs_of_layers(found.index, found.problem, solver))


def restate(plan: Plan, profile: Profile, asked: Asked) -> Plan | None:
    """Restate a plan that was made from another profile for this profile, with the judge's figures for this one.

    None if the recorded step makes other calls, or if the plan exceeds what is asked on this profile.
    """
    try:
        candidates = find_planned(profile, plan)
    except NotApplicable:
        return None
    solution = candidates.judged(judged(candidates.problem, range(len(candidates.replays)), solver=plan.solver))
    budget_bytes = asked.goal.budget_bytes or solution.peak_bytes
    if solution.peak_bytes > budget_bytes:
        return None
    if solution.recompute_seconds > asked.goal.most_seconds(candidates.plain_seconds):
        return None
    made = make_plan(candidates, solution, budget_bytes=budget_bytes, lower_bound_seconds=None, pins=asked.pins)
    return msgspec.structs.replace(made, goal=asked.goal, refused=plan.refused)


def for_candidates(seconds: float, progress: Progress | None, clock: Callable[[], float] | None = None) -> Deadline:
    """Return the deadline for finding candidates, if the solver may then search for `seconds`."""
    return Deadline.after(CANDIDATES_SHARE * seconds, clock=clock or time.thread_time, progress=progress)


def _solution(
    found: Candidates, candidates: Candidates, most_seconds: float, asked: Asked, deadline: Deadline
) -> Solution:
    """Solve over `candidates`, which are those of `found` that the pins allow. Errors carry a plan and advice."""
    problem, budget_bytes, budget = candidates.problem, asked.goal.budget_bytes, asked.goal.budget
    try:
        if budget_bytes is None:
            return least_peak_until(problem, most_seconds=most_seconds, solver=asked.solver, deadline=deadline)
        return solve_until(problem, budget_bytes, solver=asked.solver, deadline=deadline)
    except TooCostly as error:
        plan, plain_seconds = _carried(candidates, error, asked), candidates.plain_seconds
        raise error.carrying(plan=plan, plain_seconds=plain_seconds, pins=tuple(asked.pins)) from None
    except Infeasible as error:
        if error.chosen is None or budget_bytes is None:  # nothing to advise: no choice is known, or any peak would do
            raise
        unpinned_bytes = _minimum_bytes(found, asked, deadline) if asked.pins else None
        parts = peak_parts(candidates, error.chosen)
        raise error.carrying(
            plan=_carried(candidates, error, asked),
            notes=(*candidates.notes, *error.notes),
            pins=tuple(asked.pins),
            unpinned_minimum_bytes=unpinned_bytes,
            parts=parts,
            own_replays=candidates.index.profile.own_replays or "",
            advice=tuple(advise(parts, budget_bytes, unpinned_bytes=unpinned_bytes, solver=asked.solver, asked=budget)),
            asked=budget if isinstance(budget, str) else "",
        ) from None


def _minimum_bytes(candidates: Candidates, asked: Asked, deadline: Deadline) -> int:
    """Lowest peak that a solver reaches."""
    try:
        least = solve_until(candidates.problem, 1, solver=asked.solver, deadline=deadline)
    except Infeasible as error:
        return error.minimum_bytes
    return least.peak_bytes


def _carried(candidates: Candidates, error: Infeasible | TooCostly, asked: Asked) -> Plan:
    """Make a plan of the solution that an error carries; the plan's budget is its own peak."""
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
    """Make a plan of a solution; its predictions are the judge's.

    `lower_bound_seconds` bounds what any method within the budget recomputes. A bound above the judge's cost of the
    solution is wrong, and is left out.
    """
    index = candidates.index
    profile, segments = index.profile, segments_of(candidates, solution.chosen)
    clocks = candidates.clocks(solution.chosen)
    return Plan(
        model=profile.model,
        segments=segments,
        solver=solution.solver,
        status="optimal" if solution.status.value == "optimal" else "feasible",
        budget_bytes=budget_bytes,
        peak_bytes=solution.peak_bytes,
        plain_peak_bytes=simulate(candidates.problem, ()).peak_bytes,
        recompute_seconds=solution.recompute_seconds,
        plain_seconds=candidates.plain_seconds,
        host_pace_seconds=None if clocks is None else clocks.host_pace_seconds,
        host_mode=None if clocks is None else host_mode(profile),
        lower_bound_seconds=sound_bound(lower_bound_seconds, solution),
        choice_bound_seconds=solution.lower_bound_seconds,
        profile_mode=profile.mode,
        offload=candidates.offload if any(segment.offload for segment in segments) else None,
        pinned_keep=pins.keep,
        pinned_recompute=pins.recompute,
        refused=tuple(Refusal(call=index.nodes[call].key, reason=reason) for call, reason in candidates.refused),
        own_replays=profile.own_replays,
        notes=(*profile.notes, *candidates.notes, *solution.notes),
    )


def sound_bound(lower_bound_seconds: float | None, solution: Solution) -> float | None:
    """Return a lower bound on what any method recomputes; None if the solution costs less, which proves it wrong."""
    most_seconds = solution.recompute_seconds * (1 + CLOSE)
    return lower_bound_seconds if lower_bound_seconds is None or lower_bound_seconds <= most_seconds else None


def segments_of(candidates: Candidates, chosen: Iterable[int]) -> tuple[Segment, ...]:
    """Return the segments of the chosen candidates, as a plan has them."""
    return tuple(candidates.replays[i].segment for i in chosen)
