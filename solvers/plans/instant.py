"""The plans that take a fraction of a second to find: those of all baselines, of `articulation` and of `chain`.

once a problem    the baselines, which know no budget; the table of `chain`
once a budget     articulation, chain; the best of all that fits, without the segments that it does not need
"""

from __future__ import annotations

from collections import ChainMap

from ..common import Plan, best_plan, patient
from ..deadline import NEVER, Deadline
from ..judge import Judge
from ..pins import completed
from .articulation import articulation_plans
from .baselines import BASELINES
from .chain import Chain

MOST_TRIMMED = 3  # how many of all plans are trimmed, the best first


class Instants:
    """The instant solvers of a problem, to be asked for several budgets.

    Attributes:
        fixed: plans of the baselines, with the first baseline that makes each.
        chain: the dynamic programme, set up.
        columns: the problem, as `chain` and `ilp` see it.
    """

    def __init__(self, judge: Judge, deadline: Deadline = NEVER) -> None:
        """Make what does not depend on the budget; O(n × problem) for a block chain of n elements.

        On a large problem, each baseline makes only one plan once time is up.
        """
        self.deadline, until = deadline, patient(judge, deadline)
        fixed: list[dict[Plan, str]] = []
        for solver, plans in BASELINES.items():
            deadline.tell("plans of the instant solver %s", solver)
            fixed.append(dict.fromkeys(completed(judge.problem, until.first_of(plans(judge))), solver))
        self.fixed = dict(ChainMap(*fixed))
        deadline.tell("the columns of %d candidates", len(judge.problem.candidates))
        self.chain = Chain(judge)
        self.columns = self.chain.columns

    def best(self, budget_bytes: int) -> tuple[Plan, str]:
        """Return the cheapest plan that fits, or, if none does, the one with the lowest peak; and its solver.

        Heuristic; O(n × problem) and what `chain` takes.
        """
        judge = self.columns.judge
        until = patient(judge, self.deadline)
        self.deadline.tell("plans of the instant solver chain")
        chain = dict.fromkeys(completed(judge.problem, self.chain.plans(budget_bytes, deadline=until)), "chain")
        self.deadline.tell("plans of the instant solver articulation")
        plans = articulation_plans(judge, budget_bytes, deadline=until)
        articulation = dict.fromkeys(completed(judge.problem, plans), "articulation")
        found = chain | articulation | self.fixed
        return best_plan(judge, found, budget_bytes, trimmed=MOST_TRIMMED, deadline=until)
