"""The plans that take a fraction of a second to find: every simple family, and the dynamic programme.

once a problem    none, block, uniform, sqrt, speed: families that know no budget; the arcs of `chain`
once a budget     articulation, chain; the best of all that fits, without the segments that it does not need
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .articulation import articulation_plans
from .block import block_plans
from .chain import ChainPlans
from .families import Plan, best_plan, rank, trim
from .ledger import Ledger
from .pins import completed
from .speed import speed_plans
from .sqrt import sqrt_plans
from .uniform import uniform_plans

__all__ = ["Instant", "Instants", "instant_plan"]

MOST_TRIMMED = 3
"""Of all plans within the budget, the cheapest so many are trimmed."""


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
class Instants:
    """The simple families of a problem, to be asked for several budgets.

    Attributes:
        ledger: the problem.
        fixed: plans of the families that know no budget, by family.
        chain: the dynamic programme, set up.
    """

    ledger: Ledger
    fixed: Mapping[str, tuple[Plan, ...]]
    chain: ChainPlans

    @classmethod
    def of(cls, ledger: Ledger) -> Instants:
        """Make what does not depend on the budget; O(n × problem) for a block chain of n elements."""
        fixed = {
            "none": ((),),
            "block": tuple(block_plans(ledger)),
            "uniform": tuple(uniform_plans(ledger)),
            "sqrt": tuple(sqrt_plans(ledger)),
            "speed": tuple(speed_plans(ledger)),
        }
        return cls(ledger=ledger, fixed=fixed, chain=ChainPlans.of(ledger))

    def best(self, budget_bytes: int) -> Instant:
        """Try every family, without the segments that a plan does not need.

        Heuristic; O(n × problem), and what `chain` takes.
        """
        ledger = self.ledger
        families = dict(self._families(budget_bytes))
        found = [
            (rank(ledger, plan), plan, solver)
            for solver, family in families.items()
            for plan in completed(ledger.problem, family)
        ]
        fitting = sorted(each for each in found if each[0][-1] <= budget_bytes)
        if fitting:
            cheapest = [(trim(ledger, plan, budget_bytes), solver) for _, plan, solver in fitting[:MOST_TRIMMED]]
            _, plan, solver = min((rank(ledger, plan), plan, solver) for plan, solver in cheapest)
            return Instant(plan=plan, solver=solver, fits=True)
        lowest = []
        for solver, family in families.items():
            plan = best_plan(ledger, family, budget_bytes, trimmed=True)
            lowest.append((max(ledger.peak(plan), budget_bytes), rank(ledger, plan), plan, solver))
        peak_bytes, _, plan, solver = min(lowest)
        return Instant(plan=plan, solver=solver, fits=peak_bytes <= budget_bytes)

    def _families(self, budget_bytes: int) -> Iterator[tuple[str, tuple[Plan, ...]]]:
        yield from self.fixed.items()
        yield "articulation", tuple(articulation_plans(self.ledger, budget_bytes))
        yield "chain", tuple(self.chain.plans(budget_bytes))


def instant_plan(ledger: Ledger, budget_bytes: int) -> Instant:
    """Try every family for one budget; see `Instants.best`."""
    if ledger.peak(()) <= budget_bytes:
        return Instant(plan=(), solver="none", fits=True)  # nothing is cheaper than nothing
    return Instants.of(ledger).best(budget_bytes)
