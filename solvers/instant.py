"""The plans that take a fraction of a second to find: every simple family, and the dynamic programme."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .articulation import articulation_plans
from .block import block_plans
from .chain import chain_plans
from .families import Plan, best_plan, rank
from .ledger import Ledger
from .speed import speed_plans
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
    """Try every family, without the segments that a plan does not need.

    Heuristic; O(n × problem) for a block chain of n elements, and what `chain` takes.
    """
    families: dict[str, Iterable[Plan]] = {
        "none": [()],
        "block": block_plans(ledger),
        "uniform": uniform_plans(ledger),
        "sqrt": sqrt_plans(ledger),
        "articulation": articulation_plans(ledger, budget_bytes),
        "chain": chain_plans(ledger, budget_bytes),
        "speed": speed_plans(ledger),
    }
    found: list[tuple[int, tuple[float, int, int], Plan, str]] = []
    for solver, family in families.items():
        plan = best_plan(ledger, family, budget_bytes, trimmed=True)
        found.append((max(ledger.peak(plan), budget_bytes), rank(ledger, plan), plan, solver))
        if not plan and ledger.peak(plan) <= budget_bytes:
            break  # nothing is cheaper than nothing
    peak_bytes, _, plan, solver = min(found)
    return Instant(plan=plan, solver=solver, fits=peak_bytes <= budget_bytes)
