"""The plans that cost no time to find: every simple family at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .articulation import articulation_plans
from .block import block_plans
from .families import Plan, rank, trim
from .ledger import Ledger
from .sqrt import sqrt_plans
from .uniform import uniform_plans

__all__ = ["Instant", "instant_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """The best of all simple families.

    Attributes:
        plan: the cheapest that fits, or, if none does, the one with the lowest peak.
        solver: name of the family it comes from.
        fits: whether it is within the budget.
    """

    plan: Plan
    solver: str
    fits: bool


def instant_plan(ledger: Ledger, budget_bytes: int) -> Instant:
    """Try every simple family, without the segments that a plan does not need.

    Heuristic; O(n × problem) for a block chain of n elements.
    """
    plans: dict[Plan, str] = {}
    for solver, plan in _families(ledger, budget_bytes):
        plans.setdefault(tuple(sorted(plan)), solver)
    fitting = [plan for plan in plans if ledger.peak(plan) <= budget_bytes]
    trimmed: dict[Plan, str] = {}
    for plan in fitting or plans:
        trimmed.setdefault(trim(ledger, plan, budget_bytes), plans[plan])
    fitting = [plan for plan in trimmed if ledger.peak(plan) <= budget_bytes]
    if fitting:
        best = min(fitting, key=lambda plan: rank(ledger, plan))
    else:
        best = min(trimmed, key=lambda plan: (ledger.peak(plan), rank(ledger, plan)))
    return Instant(plan=best, solver=trimmed[best], fits=bool(fitting))


def _families(ledger: Ledger, budget_bytes: int) -> Iterator[tuple[str, Plan]]:
    yield "none", ()
    for plan in block_plans(ledger):
        yield "block", plan
    for plan in uniform_plans(ledger):
        yield "uniform", plan
    for plan in sqrt_plans(ledger):
        yield "sqrt", plan
    for plan in articulation_plans(ledger, budget_bytes):
        yield "articulation", plan
