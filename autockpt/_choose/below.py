"""Below one level: replays in parts, where one level does not reach a budget, or the lowest peak of all is asked for.

one level    ── a plan ──▶ done, unless the lowest peak of all is asked for, or the plan moves tensors
             ── none within the budget, or the lowest peak of all ──▶ the same candidates, and runs in parts
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from .._data.goal import Asked
from ..solvers import Solution
from ..solvers.deadline import Deadline
from .candidates import Candidates
from .candidates.nested import replays_in_parts

Choice: TypeAlias = tuple[Candidates, Solution]
"""A solution, after the candidates that it is a choice of."""

LATE = "time for candidates was up before all runs were looked at in parts, so a plan may be coarser: give more seconds"


def worth(solution: Solution, asked: Asked) -> tuple[float, float]:
    """Return the sort key of solutions, best first: the cost; without a budget in bytes, the peak and then the cost."""
    return (0 if asked.goal.budget_bytes else solution.peak_bytes, solution.recompute_seconds)


def with_runs_in_parts(found: Candidates, looking: Deadline) -> Candidates | None:
    """Return the candidates with runs in parts; None if there are none.

    Args:
        found: what was found, before pins.
        looking: when looking for runs in parts has to end.
    """
    replays = [*replays_in_parts(found.index, looking)]
    if not replays:
        return None
    notes = (*found.notes, LATE) if looking.passed else found.notes
    stay = sum(each.move is None for each in found.replays)
    every = [*found.replays[:stay], *replays, *found.replays[stay:]]
    return replace(found.like(every), notes=notes)
