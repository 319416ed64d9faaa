"""What to move off the device, beside what to recompute.

budget    ── recomputing alone reaches it ──▶ that plan, and moves beside the computing in place of some of it
          ── it does not, or the lowest peak ──▶ moves for which the step waits are candidates too; then the same
parts on several ranks: with those moves as well, and the cheaper plan
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from .._data.goal import Asked
from ..solvers import Infeasible, Solution, Status
from ..solvers.deadline import Deadline
from ..solvers.errors import TooCostly
from ..solvers.registry import SEARCHING
from .below import Choice, worth
from .candidates import Candidates

MOVING = 2.5
"""How many times as long a search may take in all, where tensors may be moved."""


def choose_moves(
    candidates: Candidates, asked: Asked, deadline: Deadline, search: Callable[[Candidates, Deadline], Solution]
) -> Choice:
    """Choose what to recompute, and then what to move instead; return the candidates that the choice is of as well.

    Args:
        candidates: that pins leave, with those that move something.
        asked: what is asked.
        deadline: whose clock and progress all searches have.
        search: searches among some candidates; errors as its.
    """
    later = deadline.again(MOVING * asked.seconds)
    pinned = candidates.offload is not None and bool(candidates.offload.pins)  # without moves there is no plan then
    found: list[Solution] = []
    if asked.goal.budget_bytes is not None and not pinned:
        with contextlib.suppress(Infeasible):
            found.append(search(candidates.staying(), later.share(0.6)))
    reached = bool(found)
    # What waits in parts may be cheaper than to recompute more; a file never is.
    shard = candidates.offload is not None and candidates.offload.is_shard
    searching = asked.solver in SEARCHING
    if not reached or shard or not searching:
        waiting = candidates.waiting()
        with contextlib.suppress(*((Infeasible, TooCostly) if reached else ())):
            found.append(waiting.judged(search(waiting, later.share(0.5))))
        if not reached and not pinned and found[0].status is not Status.OPTIMAL:
            with contextlib.suppress(Infeasible, TooCostly):  # with fewer candidates it gets further
                found.append(search(candidates.staying(), later.share(0.5)))
    best = min(found, key=lambda each: worth(each, asked))
    if not searching or _costs_nothing(best):
        return candidates, best
    budget_bytes = asked.goal.budget_bytes or best.peak_bytes
    return candidates.beside(best, budget_bytes, solver=asked.solver, deadline=later)


def _costs_nothing(solution: Solution) -> bool:
    return solution.status is Status.OPTIMAL and not solution.recompute_seconds
