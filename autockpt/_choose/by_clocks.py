"""Chooses by two clocks: two prices of the host's seconds, each plan simulated, and the cheapest step.

    the price of one clock ──────────────────▶ a plan ──┐
      who sets its pace? ┬─ the device                  │
                         │  device + 0.1 host ▶ a plan ─┤ simulated ──▶ the cheapest
                         └─ the host                    │
                            device + host ────▶ a plan ─┤
    every block whole ──────────────────────────────────┘

How much of the host's seconds shows in a step depends on the plan, so no one price is right for all. No plan is slower
than that of one clock, which is among them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

from .._data.goal import Asked
from ..solvers import Infeasible, Solution
from ..solvers.common import judged
from ..solvers.deadline import Deadline
from ..solvers.errors import TooCostly
from ..solvers.plans.blocks import block_chain
from ..solvers.registry import SEARCHING
from .candidates import Candidates

CLOSE = 1e-9
"""Share by which a simulated step may be longer than its price, through rounding."""

LITTLE, WHOLE = 0.1, 1.0
"""Shares of the host's seconds that a price has. No plan costs more than its price at WHOLE."""

MORE = 0.5
"""Share of the seconds that the search at a second price has besides."""

Search: TypeAlias = Callable[[Candidates, Deadline, int | None], Solution]
"""Searches among candidates, for what is asked or for a budget in bytes."""


def choose_by_clocks(candidates: Candidates, asked: Asked, deadline: Deadline, search: Search) -> Solution:
    """Choose what makes the cheapest step on two clocks, or of the lowest peaks the cheapest.

    Args:
        candidates: that pins leave.
        asked: what is asked.
        deadline: of the search at the first price.
        search: see `Search`; errors as its. A price at which nothing is found is left out, where there is another.
    """
    goal = asked.goal
    most_seconds, most_bytes = goal.most_seconds(candidates.plain_seconds) * (1 + CLOSE), goal.budget_bytes
    if asked.solver not in SEARCHING:
        stated = candidates if goal.max_overhead is None else candidates.priced(WHOLE)
        return candidates.judged(search(stated, deadline, None))
    found, missed = list[Solution](), list[TooCostly]()

    def look(stated: Candidates, until: Deadline, budget_bytes: int | None = None) -> None:
        try:
            found.append(candidates.judged(search(stated, until, budget_bytes)))
        except TooCostly as error:
            missed.append(error)

    look(candidates, deadline)
    if found and not found[0].chosen and goal.max_overhead is None:
        return found[0]  # nothing is cheaper than nothing
    until = deadline.again(MORE * asked.seconds)
    with contextlib.suppress(*((Infeasible,) if found else ())):
        if goal.max_overhead is not None:  # is kept to at the price that no plan exceeds
            look(candidates.priced(WHOLE), until)
        else:
            other = candidates.priced(_next_share(candidates, found[0]))
            look(other, until, found[0].peak_bytes if goal.is_minimum else None)
    found += whole_blocks(candidates)
    allowed = [each for each in found if each.recompute_seconds <= most_seconds]
    allowed = [each for each in allowed if most_bytes is None or each.peak_bytes <= most_bytes]
    if not allowed:
        raise missed[-1]
    return min(allowed, key=lambda each: (0 if most_bytes else each.peak_bytes, each.recompute_seconds))


def _next_share(candidates: Candidates, first: Solution) -> float:
    """Return the share of the host's seconds at which to look next, by who sets the pace of a first plan."""
    clocks = candidates.clocks(first.chosen)
    return WHOLE if clocks is not None and clocks.is_paced_by_host else LITTLE


def whole_blocks(candidates: Candidates) -> Iterator[Solution]:
    """Yield every block recomputed whole, where that is a plan among candidates."""
    problem = candidates.problem
    every = tuple(block_chain(problem).runs(1))
    if every and not problem.required:
        yield candidates.judged(judged(problem, every, solver="all"))


def sweep_by_clocks(
    candidates: Candidates,
    solver: str,
    deadline: Deadline,
    sweep: Callable[[Candidates, Deadline], tuple[Solution, ...]],
) -> tuple[Solution, ...]:
    """Choose for many budgets what makes the cheapest step on two clocks within each; the plain step comes first.

    The budgets are the peaks that a sweep at the first price comes to, and the lowest peak of all.
    """
    rows = list[list[Solution]]()

    def look(stated: Candidates, until: Deadline) -> None:
        rows.append([candidates.judged(solution) for solution in sweep(stated, until)])

    if solver in SEARCHING:
        look(candidates, deadline.share(1 / 2))
        look(candidates.priced(_next_share(candidates, rows[0][-1])), deadline)
    else:
        look(candidates, deadline)
    every = [solution for row in rows for solution in row]
    if solver in SEARCHING:
        every += whole_blocks(candidates)
    lowest_bytes = min(each.peak_bytes for each in every)
    kept = [rows[0][0]]
    for budget_bytes in sorted({lowest_bytes, *(each.peak_bytes for each in rows[0][1:])}, reverse=True):
        within = [each for each in every if each.peak_bytes <= budget_bytes]
        best = min(within, key=lambda each: (each.recompute_seconds, each.peak_bytes))
        if best.chosen and best.peak_bytes < kept[-1].peak_bytes:
            kept.append(best)
    return tuple(kept)
