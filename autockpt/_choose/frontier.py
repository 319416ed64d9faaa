"""The frontier: what it costs to stay within each of many budgets. No torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence

from .._data.errors import PinError
from .._data.frontier import Frontier
from .._data.goal import refuse_no_number, refuse_no_seconds
from .._data.offload import Offload
from .._data.plan import Plan
from .._data.profile import Profile, refuse_no_profile
from ..solvers import parse_bytes
from ..solvers.common import dominated_by
from ..solvers.deadline import Deadline, Progress
from ..solvers.errors import BudgetError
from ..solvers.problem import Solution
from ..solvers.registry import SEARCHING, named
from ..solvers.sweeps.frontier import POINTS, SECONDS, sweep_until
from ..solvers.units import shown
from .by_clocks import sweep_by_clocks
from .candidates import Candidates
from .candidates.search import find_candidates
from .predict.bound import BOUND_SECONDS, lay_out, least_seconds
from .solve import for_candidates, make_plan, sound_bound, with_layers

_log = logging.getLogger("autockpt")

SEARCH_SHARE = 0.8
"""Share of the time for finding plans; lower bounds get the rest."""

MOVING_SHARE = 0.3
"""The same where tensors may be moved beside the computing; looking for what to move has the rest."""


def frontier(
    profile: Profile,
    *,
    solver: str = "auto",
    points: int = POINTS,
    budgets: Sequence[int | str] | None = None,
    seconds: float = SECONDS,
    total_bytes: int | None = None,
    offload: str | os.PathLike[str] | Offload | None = None,
) -> Frontier:
    """Find what each budget costs, from the plain peak of the step down to the lowest at one level of recomputing.

    Args:
        profile: the recorded step.
        solver: a name in ``autockpt.solvers.SOLVERS``, or ``uniform:4`` or ``block:4`` for so many layers.
        points: how many budgets are solved for, evenly spaced in bytes, the plain peak and the minimum included;
            at least 2. Budgets that end in the same plan give one point.
        budgets: budgets to solve for instead of evenly spaced ones: bytes, text such as ``"8GB"``, or a share of
            `total_bytes`. The plain peak and the minimum are added. A budget below the minimum is left out.
        seconds: about how long it may take in all. Budgets whose turn has not come by then get what the
            instant solvers find, or the plan of a budget below them.
        total_bytes: memory of the device, for budgets in percent.
        offload: where tensors may be moved off the device; see `solve`.

    Returns:
        The plans; their predictions are the judge's.

    Raises:
        AutockptError: ``ilp`` was asked for, and HiGHS, which solves integer programmes, is not installed or fails.
        BudgetError: fewer than 2 points, a budget that does not parse, or seconds that are no number.
        NotApplicable: `profile` is no profile.
        UnknownSolver: there is no such solver.

    Example:
        >>> import torch, autockpt
        >>> blocks = (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(4))
        >>> frontier = autockpt.frontier(autockpt.profile(torch.nn.Sequential(*blocks), torch.randn(64, 8)), points=5)
        >>> frontier.plans[0].segments, frontier.within(frontier.minimum_bytes) is frontier.plans[-1]
        ((), True)
    """
    refuse_no_profile(profile)
    _refuse_unclear(solver, seconds, points)
    budgets_bytes, moves = _read(budgets, total_bytes), _moves(profile, offload)
    deadline = Deadline.after(seconds, progress=(progress := Progress(_log.info)))
    looking = for_candidates(seconds, progress)
    every = with_layers(find_candidates(profile, deadline=looking, offload=moves, solver=solver), solver)
    candidates = every if every.road is None else every.waiting()

    def sweep(those: Candidates, until: Deadline) -> tuple[Solution, ...]:
        return sweep_until(those.problem, solver=solver, points=points, budgets_bytes=budgets_bytes, deadline=until)

    until = deadline.share(SEARCH_SHARE if every.road is None else MOVING_SHARE)
    if candidates.paces is None:
        solutions = sweep(candidates, until)
    else:
        solutions = sweep_by_clocks(candidates, solver, until, sweep)
    operators, proven_seconds, plans = lay_out(candidates.index), 0.0, list[Plan]()
    for i, solution in enumerate(solutions):
        limit_seconds = min(deadline.left / (len(solutions) - i), BOUND_SECONDS)
        found = None if i else 0.0
        if i and limit_seconds > 0 and moves is None:  # the bound does not model moves
            found = sound_bound(least_seconds(*operators, solution.peak_bytes, seconds=limit_seconds), solution)
        # A lower bound for one peak is also a lower bound for every lower peak.
        proven_seconds = max(proven_seconds, found or 0.0)
        known = None if found is None else proven_seconds
        plans.append(make_plan(candidates, solution, budget_bytes=solution.peak_bytes, lower_bound_seconds=known))
    lowest = dominated_by(candidates.problem, solutions[-1].chosen)
    if every.road is not None:
        plans = list(_beside(every, solutions, solver, deadline))
    return Frontier(
        model=profile.model, solver=solver, plans=tuple(plans), dominated_by=lowest, samples=profile.samples
    )


def _refuse_unclear(solver: str, seconds: float, points: int) -> None:
    """Refuse what makes no sense before anything is looked for."""
    named(solver)
    refuse_no_seconds(seconds)
    refuse_no_number("points", points, 2)


def _moves(profile: Profile, offload: str | os.PathLike[str] | Offload | None) -> Offload | None:
    """Read what may be moved; refuse pins in it."""
    moves = Offload.read(offload, profile.offload)
    if moves is not None and moves.pins:
        raise PinError(f"a frontier has no pins, and offload= has {moves.pins}: give `solve` a budget with them")
    return moves


def _read(budgets: Sequence[int | str] | None, total_bytes: int | None) -> list[int] | None:
    """Read the budgets that are asked for, in bytes."""
    if budgets is None:
        return None
    if isinstance(budgets, str) or not isinstance(budgets, Iterable):
        raise BudgetError(f"budgets is a list such as ['8GB', '12GB']; this is {shown(budgets)}")
    return [parse_bytes(each, total_bytes=total_bytes) for each in budgets]


def _beside(found: Candidates, solutions: Sequence[Solution], solver: str, deadline: Deadline) -> Iterator[Plan]:
    """Move tensors beside the computing where that is cheaper, from the lowest peak on.

    Plans that another beats in both peak and seconds are left out.
    """
    waiting, kept = found.waiting(), list[tuple[Candidates, Solution]]()
    for left, solution in zip(range(len(solutions), 0, -1), reversed(solutions), strict=True):
        among, own = waiting, waiting.judged(solution)
        if left > 1 and solver in SEARCHING:
            until = deadline.share(1 / (left - 1))
            among, own = found.beside(own, own.peak_bytes, solver=solver, deadline=until)
        if not kept or own.recompute_seconds < kept[-1][1].recompute_seconds or left == 1:
            kept = [each for each in kept if each[1].peak_bytes < own.peak_bytes]
            kept.append((among, own))
    for among, own in reversed(kept):
        yield make_plan(among, own, budget_bytes=own.peak_bytes, lower_bound_seconds=None)
