"""The exact solver: the programme of `model` over few rows and columns, with the judge in the loop.

    instant plans ────────────────────────────────────────▶ a plan to start from
    relax     all candidates, no whole numbers;
              rows for the steps that it breaks ──────────▶ a bound, and what each candidate would cost on top of it
    few       whole numbers, over the 80 and then 320
              candidates that would cost least ───────────▶ plans
    all       whole numbers, over all candidates that
              cost no more than the best plan is above ───▶ plans, and a better bound

It ends as soon as the best plan is near enough to the bound. A plan is accepted only on the judge's figures; a bound is
reported only if HiGHS has answered no nonsense, such as a bound that a judged plan undercuts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ..columns import Columns
from ..common import Plan, infeasible, judged, patient, trim
from ..deadline import Deadline
from ..errors import BackendError
from ..judge import Floats, Ints, Judge, peaks
from ..plans.instant import Instants
from ..problem import Problem, Solution
from ..units import format_bytes, format_seconds
from . import highs
from .model import SCALE, Answer, Model, Question

ROWS_PER_ROUND = 60  # steps that get a row at a time, the highest first

LARGE, NEAR = 300, 1e-2
"""With more candidates than LARGE, a search ends within the share NEAR of the least cost: recorded seconds are no more
precise."""

NEARER = 2e-3  # share of the cost within which an integer programme of a large problem is solved, if one is
RELAXING_SHARE = 0.5  # share of the time left in which the relaxation is solved; plans have the rest

FEW, FEW_SHARE, WORTH_IT = (80, 320), 0.5, 0.7
"""The first integer programmes have FEW candidates, besides those that the relaxation or the best plan takes: they take
a fraction of the time, and mostly have a plan within 2 % of the bound. Each may take FEW_SHARE of the time left. One
with more than the share WORTH_IT of the candidates that matter is left out."""

CLOSE, SAFE, ROUGH = 1e-9, 1e-7, 1e-5
"""Shares of the goal. Equal costs may differ by CLOSE. Reduced costs and bounds of a relaxation may be wrong by SAFE.
Through rounding a bound may lie above a plan by ROUGH; if it lies higher, it is nonsense."""

UNPROVEN = "it was not proven in time that no plan has a lower peak"


def solve(problem: Problem, budget_bytes: int, *, deadline: Deadline) -> Solution:
    """Choose by integer programming: the optimum, or nearly the optimum if candidates are many, unless time runs out.

    The plan is never worse than what the instant solvers find. Past the deadline it comes with the bound proven so far.

    Raises:
        BackendError: HiGHS cannot be loaded, crashes or answers nonsense.
        Infeasible: no plan fits. Its minimum is the true one where the time sufficed to prove it.

    Source: that of `model`; the programme over few candidates is the restricted master of Joncour et al. 2010.
    Exact with 300 candidates or fewer; with more it stops within 1 % of the least cost. So a higher budget may cost up
    to 1 % more; `sweep` prevents that. Exponential in the worst case: if time runs out, `gap` says how near the plan
    is.
    """
    return _solved(problem, budget_bytes, deadline, "ilp")


def solve_auto(problem: Problem, budget_bytes: int, *, deadline: Deadline) -> Solution:
    """Choose the cheapest plan that any solver finds: the instant ones first, then `ilp` for the time that is left.

    The solution has the name of the solver that found it, and is as exact as that of `ilp`, if given time. If HiGHS
    fails or cannot be loaded, it is the best plan found without it, and its notes say so.

    Raises:
        Infeasible: no plan fits; its minimum is the lowest peak over all solvers.
    """
    return _solved(problem, budget_bytes, deadline, "auto")


def _solved(problem: Problem, budget_bytes: int, deadline: Deadline, asked: str) -> Solution:
    judge = Judge(problem)
    if judge.peak(()) <= budget_bytes:
        return judged(problem, (), solver="ilp" if asked == "ilp" else "none")  # `auto` names who found it: nobody here
    instants = Instants(judge, deadline)
    best = instants.best(budget_bytes)
    return search(instants.columns, best, budget_bytes, deadline=deadline, asked=asked)


def search(columns: Columns, start: tuple[Plan, str], budget_bytes: int, *, deadline: Deadline, asked: str) -> Solution:
    """Improve the plan `start` of some solver until it is proven or the deadline has passed; see `solve`.

    If HiGHS fails, `ilp` raises. `auto` returns the best plan so far, with the name of its solver, and the notes say
    why.
    """
    judge, notes = columns.judge, list[str]()
    plan, bound = start[0], None
    if judge.peak(plan) > budget_bytes:
        plan, proven = lower_peak(columns, plan, budget_bytes, deadline=deadline, asked=asked, notes=notes)
        if judge.peak(plan) > budget_bytes:
            plan = trim(judge, plan, budget_bytes, deadline=patient(judge, deadline))
            notes += [] if proven else [UNPROVEN]
            raise infeasible(judge.problem, plan, budget_bytes=budget_bytes, solver=asked, notes=notes)
    if judge.seconds(plan) > 0.0 and not (notes or deadline.passed):
        question = Question(columns, "seconds", budget_bytes, most_bytes=budget_bytes)
        plan, bound = improve(question, plan, deadline, asked=asked, notes=notes)
    solver = "ilp" if asked == "ilp" or plan != start[0] or bound is not None else start[1]
    seconds, bound = judge.seconds(plan), bound or None  # a bound of 0 says nothing
    if bound is not None and bound >= seconds * (1 - CLOSE):
        bound = seconds
    return judged(judge.problem, plan, solver=solver, lower_bound_seconds=bound, notes=notes)


def lower_peak(
    columns: Columns,
    plan: Plan,
    budget_bytes: int,
    *,
    deadline: Deadline,
    asked: str,
    notes: list[str],
    most_seconds: float = math.inf,
) -> tuple[Plan, bool]:
    """Lower the peak of a plan until it is within the budget or proven the lowest, whatever that costs up to a limit.

    Returns the plan, and whether it is within the budget or proven that no plan gets nearer to it.
    """
    judge = columns.judge
    if deadline.passed:
        return plan, judge.peak(plan) <= budget_bytes
    limit_bytes = max(budget_bytes, int(columns.base_bytes.max()))  # no plan is below that
    question = Question(columns, "peak", limit_bytes, most_bytes=judge.peak(plan), most_seconds=most_seconds)
    plan, bound_bytes = improve(question, plan, deadline, asked=asked, notes=notes)
    above_bytes = max(judge.peak(plan) - limit_bytes, 0)
    return plan, bound_bytes is not None and bound_bytes > above_bytes - 1  # bytes are whole


def improve(
    question: Question, plan: Plan, deadline: Deadline, *, asked: str, notes: list[str]
) -> tuple[Plan, float | None]:
    """Search from a plan. Returns the best plan, and a bound on the goal: None if HiGHS failed, which is noted."""
    large = question.goal == "seconds" and len(question.open) > LARGE
    search = _Search(question=question, plan=plan, deadline=deadline, near=NEAR if large else 0.0)
    try:
        search.run()
    except BackendError as error:
        if asked == "ilp":
            raise BackendError(f"{error}. Solver 'auto' returns the best plan of the instant solvers then") from error
        notes.append(f"{error}, so this is the best plan that was found without it")
        return search.plan, None  # the judge has checked it, so it holds though HiGHS failed
    return search.plan, search.bound


@dataclass(slots=True, kw_only=True)
class _Search:
    """A search under way: the best plan, the bound, the steps that have rows, and the last relaxation solved.

    A relaxation with fewer rows has a weaker bound, but a valid one. The search ends once the plan is within the share
    `near` of the bound.
    """

    question: Question
    plan: Plan
    deadline: Deadline
    near: float
    bound: float = 0.0
    rows: set[int] = field(default_factory=set)
    guide: Answer | None = None

    @property
    def judge(self) -> Judge:
        """The problem."""
        return self.question.columns.judge

    def run(self) -> None:
        """Search until the plan is proven or time is up; a `BackendError` leaves the best plan."""
        columns = self.question.columns
        if not columns.n_candidates:
            self.offer(())
            self.bound = self.goal(self.plan)
            return
        self.relax()
        for few in (*FEW, None):
            if self.proven() or self.deadline.passed or self.guide is None or self.guide.values is None:
                break
            matter = self.that_matter(self.guide)
            if few is None:
                self.branch(matter, self.deadline, proves=True)
                break
            likely = matter[np.argsort(self.guide.reduced_cost[matter], kind="stable")][:few]
            taken = np.flatnonzero(self.guide.values[: columns.n_candidates] > SAFE)
            some = np.union1d(likely, taken)
            if len(some) < WORTH_IT * len(matter):  # else all of them take no longer, and give a bound
                self.branch(some, self.deadline.share(FEW_SHARE), proves=False)
        if self.question.goal == "seconds":
            until = patient(self.judge, self.deadline)
            self.offer(trim(self.judge, self.plan, self.question.limit_bytes, deadline=until))

    def goal(self, plan: Plan) -> float:
        """What is minimised: seconds, or bytes above the limit."""
        if self.question.goal == "seconds":
            return self.judge.seconds(plan)
        return float(max(self.judge.peak(plan) - self.question.limit_bytes, 0))

    def quality(self) -> str:
        """Say how good the best plan is."""
        if self.question.goal == "seconds":
            return f"recomputes for {format_seconds(self.judge.seconds(self.plan))}"
        return f"peaks at {format_bytes(self.judge.peak(self.plan))}"

    def offer(self, plan: Plan) -> None:
        """Make a plan the best one if it is better, and keeps to what is asked."""
        if self.question.goal == "seconds":
            keeps = self.judge.peak(plan) <= self.question.limit_bytes
        else:
            keeps = self.judge.seconds(plan) <= self.question.most_seconds * (1 + CLOSE)
        if keeps and (self.goal(plan), len(plan)) < (self.goal(self.plan), len(self.plan)):
            self.plan = plan
            self.raise_bound(self.bound)

    def raise_bound(self, bound: float) -> None:
        """Raise the bound, at most to the figure of the best plan. There the plan is proven to be optimal.

        A bound above that figure by more than rounding is nonsense: the best plan is below it.
        """
        goal = self.goal(self.plan)
        if not bound <= goal + ROUGH * max(goal, SCALE * self.question.unit):
            in_words = "seconds" if self.question.goal == "seconds" else "bytes above the budget"
            raise highs.nonsense(f"no plan below {bound:g} {in_words}, where the judge has one of {goal:g}")
        self.bound = min(max(self.bound, bound), goal)

    def proven(self) -> bool:
        """Whether no plan can be better than the best, or only by a share of `near`."""
        goal = self.goal(self.plan)
        if self.question.goal == "peak":
            return self.bound > goal - 1  # bytes are whole
        return self.bound >= goal * (1 - max(CLOSE, self.near))

    def relax(self) -> None:
        """Solve the relaxation over all candidates, with rows for the steps that it breaks."""
        columns, limit_bytes = self.question.columns, self.question.limit_bytes
        high_bytes = limit_bytes if self.question.goal == "seconds" else self.judge.peak(self.plan)
        self.rows |= self.broken(self.judge.levels(()), high_bytes)
        self.rows |= self.broken(self.judge.levels(self.plan), 0.9 * high_bytes)
        model = Model(self.question, self.question.open, sorted(self.rows), whole=False)
        until = self.deadline.share(RELAXING_SHARE)
        while not (self.proven() or until.passed):
            self.deadline.tell("the relaxation of %d candidates, %d steps", len(self.question.open), len(self.rows))
            # Without a first answer nothing else can begin, so it may take all the time.
            answer = model.solve((until if self.guide else self.deadline).left)
            if answer.infeasible:
                raise highs.nonsense("no plan at all, where the judge has one")
            if not answer.solved or answer.values is None or answer.bound is None:
                return
            self.guide = answer
            self.raise_bound(answer.bound * (1 - SAFE))
            over_bytes = answer.bound if self.question.goal == "peak" else 0.0
            new = self.broken(columns.levels(answer.values), (limit_bytes + over_bytes) * (1 + SAFE))
            if not new:
                return
            self.rows |= new
            model.add_levels(sorted(new))

    def that_matter(self, guide: Answer) -> Ints:
        """Candidates that a better plan may take: those with a reduced cost within the gap, and the best plan's."""
        most = self.goal(self.plan) * (1 + SAFE) - (guide.bound or 0.0)
        matter: Ints = np.union1d(np.flatnonzero(guide.reduced_cost <= most), self.plan).astype(np.int64)
        return matter

    def branch(self, candidates: Iterable[int], deadline: Deadline, *, proves: bool) -> None:
        """Solve the integer programme over some columns; where its plan breaks a level, add the step and repeat.

        Its bound is used if it `proves` something: if no better plan takes other columns.
        """
        question, limit_bytes = self.question, self.question.limit_bytes
        model = Model(question, [*candidates, *self.plan], sorted(self.rows), whole=True)
        while not (self.proven() or deadline.passed):
            self.deadline.tell("an integer programme, best plan so far %s", self.quality())
            answer = model.solve(deadline.left, start=self.plan, near=min(self.near, NEARER))
            if proves:
                if answer.infeasible:
                    raise highs.nonsense("no plan at all, where the judge has one")
                self.raise_bound(answer.bound or 0.0)
            if answer.values is None:
                return
            plan = question.columns.plan(answer.values)
            self.offer(plan)
            over_bytes = (answer.bound or 0.0) * (1 + SAFE) if question.goal == "peak" else 0.0
            new = self.broken(self.judge.levels(plan), limit_bytes + over_bytes)
            if not new:
                return
            self.rows |= new
            model.add_levels(sorted(new))

    def broken(self, levels: Ints | Floats, limit_bytes: float) -> set[int]:
        """Steps without a row where the levels peak above a limit, the highest first."""
        return set(peaks(levels, limit_bytes)[:ROWS_PER_ROUND]) - self.rows
