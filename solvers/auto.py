"""The default: every instant family, then the integer programme for the time that is left."""

from __future__ import annotations

import time
from dataclasses import replace

from .backends import Backends
from .families import TIME_LIMIT_SECONDS, judged
from .ilp import search
from .instant import instant_plan
from .ledger import Ledger
from .problem import Problem, Solution


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Choose the cheapest plan that any solver finds.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: after so long the best plan found is returned.

    Returns:
        The best plan, under the name of the solver that found it. Where the time suffices it is optimal with 300
        candidates or fewer, and with more within 1 % of that, as `ilp` is.

    Raises:
        Infeasible: no plan fits; its minimum is the lowest peak over all solvers.

    As exact as `ilp`, if given time. Where all backends of that fail, the best of the instant solvers, which says so.
    """
    deadline = time.perf_counter() + time_limit_seconds
    ledger = Ledger.of(problem)
    start = instant_plan(ledger, budget_bytes)
    if start.fits and ledger.seconds(start.plan) <= 0.0:
        return judged(problem, start.plan, solver=start.solver)
    backends = Backends.of()
    found = search(ledger, start.plan, budget_bytes=budget_bytes, deadline=deadline, backends=backends, asked="auto")
    return found if backends.left or found.chosen != start.plan else replace(found, solver=start.solver)
