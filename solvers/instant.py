"""The plans that take a fraction of a second to find: those of all baselines, of `articulation` and of `chain`.

once a problem    the baselines, which know no budget; the table of `chain`
once a budget     articulation, chain; the best of all that fits, without the segments that it does not need
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .articulation import articulation_plans
from .baselines import BASELINES
from .chain import Chain
from .columns import Columns
from .common import Plan, ordered, stated, trim
from .fast_judge import FastJudge

MOST_TRIMMED = 3  # the best so many of all plans lose the segments that they do not need


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """The cheapest instant plan that fits, or, if none does, the one with the lowest peak; and whose it is."""

    plan: Plan
    solver: str
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """The instant solvers of a problem, to be asked for several budgets.

    Attributes:
        fixed: plans of the baselines, with the first baseline that makes each.
        chain: the dynamic programme, set up.
    """

    fixed: dict[Plan, str]
    chain: Chain

    @classmethod
    def of(cls, judge: FastJudge) -> Instants:
        """Make what does not depend on the budget; O(n × problem) for a block chain of n elements."""
        fixed: dict[Plan, str] = {}
        for solver, baseline in BASELINES.items():
            _note(judge, fixed, solver, baseline.plans(judge))
        return cls(fixed=fixed, chain=Chain.of(judge))

    @property
    def columns(self) -> Columns:
        """The problem, as `chain` and `ilp` see it."""
        return self.chain.columns

    def best(self, budget_bytes: int) -> Instant:
        """Ask all of them; heuristic, O(n × problem) and what `chain` takes."""
        judge, found = self.columns.judge, dict(self.fixed)
        _note(judge, found, "articulation", articulation_plans(judge, budget_bytes))
        _note(judge, found, "chain", self.chain.plans(budget_bytes))
        lean: dict[Plan, str] = {}
        for plan in ordered(judge, found, budget_bytes)[:MOST_TRIMMED]:
            lean.setdefault(trim(judge, plan, budget_bytes), found[plan])
        best = ordered(judge, lean, budget_bytes)[0]
        return Instant(plan=best, solver=lean[best], fits=judge.peak(best) <= budget_bytes)


def _note(judge: FastJudge, found: dict[Plan, str], solver: str, plans: Iterable[Plan]) -> None:
    for plan in stated(judge, plans):
        found.setdefault(plan, solver)
