"""Below one level: replays in parts, where one level does not reach what is asked, or the lowest peak is asked for.

one level    ── a plan ──▶ done, but where the lowest peak is asked for, or the plan moves tensors
             ── none within the budget, or the lowest peak ──▶ the same candidates, and runs in parts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .._data.goal import Asked
from ..solvers import Infeasible, Solution
from ..solvers.deadline import Deadline
from ..solvers.registry import SEARCHING
from .candidates import Candidates
from .candidates.parts import replays_in_parts
from .pins import pin

Solve: TypeAlias = Callable[[Candidates, Candidates], Solution]
"""Chooses among candidates that pins may have left of those that were found, which come first."""

LATE = "time for candidates was up before all runs were looked at in parts, so a plan may be coarser: give more seconds"


def choose_among(
    found: Candidates, asked: Asked, solve: Solve, looking: Callable[[], Deadline]
) -> tuple[Candidates, Solution]:
    """Choose among what was found, as far as pins allow it; below one level where that is not enough.

    Args:
        found: what was found.
        asked: what is asked.
        solve: chooses; errors as its.
        looking: makes the deadline of further candidates.
    """
    candidates = pin(found, asked.pins)
    try:
        one = solve(found, candidates)
    except Infeasible as error:
        wider = _wider(found, asked, asked.goal.budget_bytes or 0, looking)
        if wider is None:
            raise
        return _below(wider, asked, solve, error)
    minimum, moves = asked.goal.is_minimum, any(candidates.replays[i].segment.offload for i in one.chosen)
    budget_bytes = asked.goal.budget_bytes or one.peak_bytes - 1
    wider = _wider(found, asked, budget_bytes, looking) if minimum or (moves and asked.goal.budget) else None
    if wider is None:
        return candidates, one
    pinned = pin(wider, asked.pins)
    below = solve(wider, pinned)
    worth = [(each.peak_bytes if minimum else 0, each.recompute_seconds) for each in (one, below)]
    return (candidates, one) if worth[0] <= worth[1] else (pinned, below)


def _below(wider: Candidates, asked: Asked, solve: Solve, first: Infeasible) -> tuple[Candidates, Solution]:
    """Choose below one level; where that is not enough either, the error is that of the lower peak."""
    pinned = pin(wider, asked.pins)
    try:
        return pinned, solve(wider, pinned)
    except Infeasible as error:
        raise (error if error.minimum_bytes < first.minimum_bytes else first) from None


def _wider(found: Candidates, asked: Asked, budget_bytes: int, looking: Callable[[], Deadline]) -> Candidates | None:
    """Return the candidates with those in parts; None where they can be of no use within so many bytes."""
    floor_bytes = max(step.base_bytes for step in found.problem.steps)  # which no decision changes
    if not asked.below or asked.solver not in SEARCHING or budget_bytes < floor_bytes:
        return None
    deadline = looking()
    replays = [*replays_in_parts(found.index, deadline)]
    if not replays:
        return None
    notes = (*found.notes, LATE) if deadline.passed else found.notes
    stay = len(found.staying().replays)
    every = [*found.replays[:stay], *replays, *found.replays[stay:]]
    return Candidates.of(found.index, every, refused=found.refused, notes=notes, offload=found.offload)
