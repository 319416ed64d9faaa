"""The plans that take a fraction of a second to find: every simple family, and the dynamic programme.

once a problem    none, block, uniform, sqrt, speed: families that know no budget; the arcs of `chain`
once a budget     articulation, chain; the best of all that fits, without the segments that it does not need
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .articulation import articulation_plans
from .block import block_plans
from .chain import ChainPlans
from .families import Plan, rank, trim
from .ledger import Ledger
from .pins import completed
from .speed import speed_plans
from .sqrt import sqrt_plans
from .uniform import uniform_plans

MOST_TRIMMED = 3
"""The best so many of all plans lose the segments that they do not need."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A plan of a family, and its place in the order of preference."""

    order: tuple[float, int, int]
    plan: Plan
    solver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """The simple families of a problem, to be asked for several budgets.

    Attributes:
        ledger: the problem.
        fixed: plans of the families that know no budget.
        chain: the dynamic programme, set up.
    """

    ledger: Ledger
    fixed: tuple[_Ranked, ...]
    chain: ChainPlans

    @classmethod
    def of(cls, ledger: Ledger) -> Instants:
        """Make what does not depend on the budget; O(n × problem) for a block chain of n elements."""
        families: dict[str, Iterable[Plan]] = {
            "none": [()],
            "block": block_plans(ledger),
            "uniform": uniform_plans(ledger),
            "sqrt": sqrt_plans(ledger),
            "speed": speed_plans(ledger),
        }
        fixed = tuple(one for solver, family in families.items() for one in _ranked(ledger, solver, family))
        return cls(ledger=ledger, fixed=fixed, chain=ChainPlans.of(ledger))

    def best(self, budget_bytes: int) -> Instant:
        """Try every family, without the segments that a plan does not need.

        Args:
            budget_bytes: highest peak allowed.

        Returns:
            The cheapest plan within the budget; where none is, the one with the lowest peak.

        Heuristic; O(n × problem), and what `chain` takes.
        """
        ledger = self.ledger
        ranked = [
            *self.fixed,
            *_ranked(ledger, "articulation", articulation_plans(ledger, budget_bytes)),
            *_ranked(ledger, "chain", self.chain.plans(budget_bytes)),
        ]

        def preference(one: _Ranked) -> tuple[int, tuple[float, int, int], Plan, str]:
            return max(one.order[-1], budget_bytes), one.order, one.plan, one.solver

        some = sorted(ranked, key=preference)[:MOST_TRIMMED]
        trimmed = [_ranked(ledger, one.solver, [trim(ledger, one.plan, budget_bytes)])[0] for one in some]
        best = min(trimmed, key=preference)
        return Instant(plan=best.plan, solver=best.solver, fits=best.order[-1] <= budget_bytes)


def _ranked(ledger: Ledger, solver: str, family: Iterable[Plan]) -> list[_Ranked]:
    plans = dict.fromkeys(tuple(sorted(plan)) for plan in completed(ledger.problem, family))
    return [_Ranked(order=rank(ledger, plan), plan=plan, solver=solver) for plan in plans]


def instant_plan(ledger: Ledger, budget_bytes: int) -> Instant:
    """Try every family for one budget; see `Instants.best`."""
    if ledger.peak(()) <= budget_bytes:
        return Instant(plan=(), solver="none", fits=True)  # nothing is cheaper than nothing
    return Instants.of(ledger).best(budget_bytes)
