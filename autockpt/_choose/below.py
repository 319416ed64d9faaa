"""Below one level: replays in parts, where one level does not reach what is asked, or the lowest peak is asked for.

one level    ── a plan ──▶ done, but where the lowest peak is asked for, or the plan moves tensors
             ── none within the budget, or the lowest peak ──▶ the same candidates, and runs in parts
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from .._data.goal import Asked
from .._data.plan import Segment
from ..solvers import Infeasible, Solution
from ..solvers.deadline import Deadline
from ..solvers.registry import SEARCHING
from .candidates import Candidates
from .candidates.nested import replays_in_parts
from .pins import pin

Solve: TypeAlias = Callable[[Candidates, Candidates], tuple[Candidates, Solution]]
"""Chooses among candidates that pins may have left of those that were found, which come first; with those chosen of."""

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
        chosen_of, one = solve(found, candidates)
    except Infeasible as error:
        wider = _wider(found, asked, error.minimum_bytes - 1, looking)  # the error names the lowest peak of all
        if wider is None:
            raise
        return _below(wider, asked, solve, error)
    minimum, moves = asked.goal.is_minimum, any(_waits(chosen_of.replays[i].segment) for i in one.chosen)
    budget_bytes = asked.goal.budget_bytes or one.peak_bytes - 1
    wider = _wider(found, asked, budget_bytes, looking) if minimum or (moves and asked.goal.budget) else None
    if wider is None:
        return chosen_of, one
    below_of, below = solve(wider, pin(wider, asked.pins))
    worth = [(each.peak_bytes if minimum else 0, each.recompute_seconds) for each in (one, below)]
    return (chosen_of, one) if worth[0] <= worth[1] else (below_of, below)


def _waits(segment: Segment) -> bool:
    """Whether the step waits for tensors of a segment, as where one level does not reach the budget without."""
    return segment.offload is not None and segment.until is None


def _below(wider: Candidates, asked: Asked, solve: Solve, first: Infeasible) -> tuple[Candidates, Solution]:
    """Choose below one level; where that is not enough either, the error is that of the lower peak."""
    try:
        return solve(wider, pin(wider, asked.pins))
    except Infeasible as error:
        lower = error.minimum_bytes < first.minimum_bytes
        raise (error.carrying(one_level=first.plan) if lower else first) from None


def _wider(found: Candidates, asked: Asked, budget_bytes: int, looking: Callable[[], Deadline]) -> Candidates | None:
    """Return the candidates with those in parts; None where no plan of any can be within so many bytes."""
    floor_bytes = max(step.base_bytes for step in found.problem.steps)  # which no decision changes
    if not asked.below or asked.solver not in SEARCHING or budget_bytes < floor_bytes:
        return None
    deadline = looking()
    replays = [*replays_in_parts(found.index, deadline)]
    if not replays:
        return None
    notes = (*found.notes, LATE) if deadline.passed else found.notes
    stay = sum(each.move is None for each in found.replays)
    every = [*found.replays[:stay], *replays, *found.replays[stay:]]
    return replace(found.like(every), notes=notes)
