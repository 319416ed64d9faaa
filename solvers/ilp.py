"""The exact solver: an integer programme whose rows and columns are generated, with the judge in the loop.

instant plans ─────────────────────────────────────────────────▶ upper bound ◀──────────────┐
                                                                     │                      │
relaxation ◀─ steps whose level it breaks, candidates that it lacks ─▶ lower bound          │
                                                                     │ not near?            │
integer programmes over the few candidates that cost the relaxation least ──────────────────┤
                                                                     │ still not near?      │
integer programme over the candidates whose reduced cost is within the gap ─────────────────┘

A plan is accepted only on the judge's figures; a bound is reported only where a backend proved it that has answered no
nonsense, such as one that a judged plan undercuts.
"""

from __future__ import annotations

import time
from typing import Literal

from .backends import Backend, Backends
from .errors import AutockptError, BackendError
from .families import TIME_LIMIT_SECONDS, Plan, infeasible, judged, trim
from .formulation import Formulation
from .instant import instant_plan
from .integer_search import CLOSE, Search
from .ledger import Ledger
from .problem import Problem, Solution

UNPROVEN = "it was not proven in time that no plan has a lower peak"


def solve(
    problem: Problem,
    budget_bytes: int,
    *,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
    backend: Backend | None = None,
) -> Solution:
    """Choose by integer programming: the optimum, or with many candidates nearly so, unless time runs out.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: after so long the best plan found is returned, with the bound proven so far.
        backend: ``highs`` or ``cbc``; None takes HiGHS where it is installed, and CBC where that fails.

    Returns:
        The best plan found, never worse than what the simple solvers find.

    Raises:
        AutockptError: neither HiGHS nor CBC is installed.
        BackendError: those that are installed crash or answer nonsense.
        Infeasible: no plan fits. Its minimum is the true one where the time sufficed to prove it.

    Source: the memory rows of Jain et al. 2020, "Checkmate", section 4, and Shah et al. 2021, "MONeT", over
    segments in place of tensors; columns and rows generated after Gilmore and Gomory 1961 and Dantzig,
    Fulkerson and Johnson 1954; the programme over few candidates is the restricted master of Joncour et al. 2010.
    Exact with 300 candidates or fewer; with more it stops within 1 % of the least cost, so that more budget may cost
    up to 1 % more, which `sweep` never lets it. Exponential in the worst case: out of time, `gap` says how near it is.
    """
    deadline = time.perf_counter() + time_limit_seconds
    ledger = Ledger.of(problem)
    start = instant_plan(ledger, budget_bytes).plan
    backends = Backends.of(backend)
    if not backends.left:
        raise AutockptError(
            "solver 'ilp' needs HiGHS (pip install highspy) or CBC, and PuLP brings no CBC for this machine"
        )
    solution = search(ledger, start, budget_bytes=budget_bytes, deadline=deadline, backends=backends)
    if not backends.left:
        raise all_failed(backends)
    return solution


def all_failed(backends: Backends) -> BackendError:
    """Make the error of a solver that cannot do without any of the backends, all of which have failed."""
    return BackendError(
        f"solver 'ilp' has nobody who solves its programmes: {'. '.join(backends.notes)}. "
        "Solver 'auto' returns the best plan of the simple solvers then"
    )


def search(
    ledger: Ledger,
    start: Plan,
    *,
    budget_bytes: int,
    deadline: float,
    backends: Backends,
    asked: str = "ilp",
) -> Solution:
    """Improve the plan `start` until it is proven or `time.perf_counter` reaches `deadline`; see `solve`.

    Where all backends fail it is the best plan until then, under the name of the solver that was `asked`; so is an
    `Infeasible`.
    """
    plan = start
    if ledger.peak(plan) > budget_bytes:
        plan, proven = lower_peak(ledger, plan, budget_bytes=budget_bytes, deadline=deadline, backends=backends)
        if ledger.peak(plan) > budget_bytes:
            plan = trim(ledger, plan, budget_bytes)
            notes = backends.notes if proven else [*backends.notes, UNPROVEN]
            raise infeasible(ledger.problem, plan, budget_bytes=budget_bytes, solver=asked, notes=notes)
    if time.perf_counter() >= deadline:
        return judged(ledger.problem, plan, solver=asked, notes=backends.notes)
    form = Formulation.of(ledger, budget_bytes)
    plan, bound = _improved(form, plan, "seconds", budget_bytes, deadline, backends)
    cost, bound = ledger.seconds(plan), bound or None  # that no plan costs less than nothing is no news
    if bound is not None and bound >= cost * (1 - CLOSE):
        bound = cost
    return judged(
        ledger.problem,
        plan,
        solver="ilp" if backends.left else asked,
        lower_bound_seconds=bound,
        notes=backends.notes,
    )


def lower_peak(
    ledger: Ledger, start: Plan, *, budget_bytes: int, deadline: float, backends: Backends
) -> tuple[Plan, bool]:
    """Lower the peak of the plan `start` until it is within the budget or proven the lowest, or time runs out.

    Whatever it costs: see `search` for the cheapest plan that gets as low.

    Returns:
        The plan, and whether it is within the budget or proven that no plan gets nearer to it.
    """
    if time.perf_counter() >= deadline:
        return start, ledger.peak(start) <= budget_bytes
    form = Formulation.of(ledger, ledger.peak(start))
    plan, bound_bytes = _improved(form, start, "peak", budget_bytes, deadline, backends)
    above_bytes = ledger.peak(plan) - budget_bytes
    # Bytes are whole: a bound less than one below the plan proves it.
    return plan, above_bytes <= 0 or (bound_bytes is not None and bound_bytes > above_bytes * (1 - CLOSE) - 1)


def _improved(
    form: Formulation,
    start: Plan,
    goal: Literal["seconds", "peak"],
    budget_bytes: int,
    deadline: float,
    backends: Backends,
) -> tuple[Plan, float | None]:
    """Search from a plan; returns the best, and the bound of a backend that has not failed."""
    plan = start

    def attempt(backend: Backend) -> float | None:
        nonlocal plan
        search = Search.of(form, plan, goal, budget_bytes, backend, deadline)
        try:
            search.run()
        finally:
            plan = search.plan  # the judge has seen it, whatever becomes of the backend
        return search.bound

    bound = backends.ask(attempt)
    return plan, bound
