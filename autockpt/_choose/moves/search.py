"""Plans that move tensors while the device computes: how long they wait for the link, and a search for better ones.

Each window of the link becomes one more step of the problem. In that step a move counts the bytes that it copies in the
window. The step's base bytes are the budget less what the window takes. So any solver keeps to the budget and to the
windows, and needs to know of no link.

    steps     forward ... backward | link out, h.3 to h.5 | link back, h.3 to h.5 | ...
    level     memory ≤ budget      | budget - what it takes + what passes in it ≤ budget
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ...solvers.columns import Columns
from ...solvers.common import judged
from ...solvers.deadline import Deadline
from ...solvers.judge import Judge
from ...solvers.pins import as_demands, highest_bytes
from ...solvers.problem import Addition, Problem, Solution, Step
from ...solvers.programme import ilp
from ..replay_cost.effects import PlannedReplay
from .road import Road

FULL, APART, TRIES = 0.85, 0.15, 2
"""How full windows may get in the first search, how much this changes for the next, and how many searches there are.

Fuller windows make cheaper plans, and longer waits. So the next search fills them less if the device waited, and more
if it did not.
"""

SHARE = 0.6
"""The first search has this share of the time."""

LITTLE = 0.02
"""The device counts as not waiting if it waits for at most this share of the seconds that moving saves."""


def more_seconds(road: Road | None, chosen: Sequence[PlannedReplay]) -> float:
    """Return the seconds that a plan takes beyond those of its segments: each counts waits as if it had the link alone.

    It is below 0 if the copies of several segments together wait less.
    """
    moves = [each.move for each in chosen if each.move is not None]
    if road is None or not moves:
        return 0.0
    again = [(each.tick, each.segment.recompute_seconds - each.waits_seconds) for each in chosen]
    return road.waiting_seconds(moves, again) - sum(each.waits_seconds for each in chosen)


def with_waits(road: Road | None, replays: Sequence[PlannedReplay], solution: Solution) -> Solution:
    """Return a solution whose seconds include those that the device waits for the link."""
    more = more_seconds(road, [replays[i] for i in solution.chosen])
    return replace(solution, recompute_seconds=max(solution.recompute_seconds + more, 0.0)) if more else solution


def with_windows(
    road: Road | None, replays: Sequence[PlannedReplay], problem: Problem, budget_bytes: int, full: float = 1.0
) -> Problem:
    """Return the problem with the windows of the link as steps after all others; unchanged if there is no `road`."""
    if road is None:
        return problem
    n_steps, more = len(problem.steps), list[Step]()
    additions: dict[int, list[Addition]] = defaultdict(list)
    for number, window in enumerate(road.windows([each.move for each in replays]), n_steps):
        base_bytes = max(budget_bytes - int(full * window.most_bytes), 0)
        more.append(Step(name="the link to the host", base_bytes=base_bytes))
        for candidate, n_bytes in window.bytes.items():
            additions[candidate].append(Addition(n_bytes, number, number + 1))
    stated = tuple(
        replace(each, additions=(*each.additions, *additions[number])) if number in additions else each
        for number, each in enumerate(problem.candidates)
    )
    return replace(problem, steps=(*problem.steps, *more), candidates=stated)


def _with_bases(columns: Columns, problem: Problem) -> Columns:
    """Return `columns` for a problem that differs from theirs only in the base bytes of its steps."""
    found, judge = copy.copy(columns), copy.copy(columns.judge)
    judge.problem, judge.base_bytes = problem, np.array([step.base_bytes for step in problem.steps])
    found.judge, found.base_bytes = judge, columns.base_bytes + judge.base_bytes - columns.judge.base_bytes
    return found


class Search:
    """Looks among candidates for plans whose copies overlap with compute.

    Args:
        road: the link. None if the step waits for every move.
        replays: the candidates, including those of the plan that a search begins with.
        problem: the problem that they make.
        state: makes the problem of other candidates.
        later: returns a candidate's variants whose move ends later.
    """

    def __init__(
        self,
        road: Road | None,
        replays: Sequence[PlannedReplay],
        problem: Problem,
        *,
        state: Callable[[Sequence[PlannedReplay]], Problem],
        later: Callable[[PlannedReplay], Iterable[PlannedReplay]],
    ) -> None:
        self._road, self._replays, self._problem, self._state, self._later = road, replays, problem, state, later

    def cheaper(
        self, best: Solution, budget_bytes: int, *, solver: str, deadline: Deadline
    ) -> tuple[Sequence[PlannedReplay], Solution]:
        """Look for a plan that costs less than the best so far. Return it, after the candidates that it chooses from.

        A heuristic: `ilp` searches with the windows of the link. If the device waits in what it finds, moves get later
        ends. Waits are those of the link itself, not of its windows. The result never costs more than `best`.

        Args:
            best: a plan within the budget. Its seconds include its waits.
            budget_bytes: the budget.
            solver: who asks; see `ilp.search`.
            deadline: when to be done.
        """
        start, before, known = (best.chosen, best.solver), best.recompute_seconds, self._replays
        columns, full, budget_bytes = None, FULL, min(budget_bytes, highest_bytes(self._problem))
        for number in range(TRIES if self._road is not None else 1):
            windowed = as_demands(with_windows(self._road, self._replays, self._problem, budget_bytes, full))
            columns = Columns(Judge(windowed)) if columns is None else _with_bases(columns, windowed)
            until = deadline.share(SHARE) if self._road is not None and not number else deadline
            searched = ilp.search(columns, start, budget_bytes, deadline=until, asked=solver)
            among, found = self._with_later_deadlines(searched, budget_bytes)
            if found.recompute_seconds < best.recompute_seconds:
                known, best = among, found
            if deadline.passed or not (searched.recompute_seconds < before):
                break
            waits = found.recompute_seconds - searched.recompute_seconds
            full += -APART if waits > LITTLE * (before - searched.recompute_seconds) else APART
        return known, best

    def _with_later_deadlines(self, solution: Solution, budget_bytes: int) -> tuple[Sequence[PlannedReplay], Solution]:
        """Give copies to the host later deadlines, greedily, as long as the device waits no longer for that.

        A tensor then stays on the device longer. That is allowed while the peak stays in the budget: only near the peak
        is there no memory for it.

        Returns:
            The chosen moves and their variants with later deadlines, as candidates; and the solution among these.
        """
        groups = [[self._replays[i], *self._later(self._replays[i])] for i in solution.chosen]
        variants = [(number, variant) for number, group in enumerate(groups) for variant in range(len(group))]
        numbers = {each: i for i, each in enumerate(variants)}
        among = [groups[number][variant] for number, variant in variants]
        problem, chosen_variant = self._state(among), [0] * len(groups)
        judge = Judge(problem)

        def plan() -> list[int]:
            return [numbers[each] for each in enumerate(chosen_variant)]

        def waits() -> float:
            return more_seconds(self._road, [among[i] for i in plan()])

        least, better = waits(), True
        while least > 0.0 and better:
            better = False
            for number, group in enumerate(groups):
                if chosen_variant[number] + 1 < len(group):
                    chosen_variant[number] += 1
                    if judge.peak(plan()) <= budget_bytes and (now := waits()) <= least:
                        least, better = now, True
                    else:
                        chosen_variant[number] -= 1
        chosen = judged(problem, plan(), solver=solution.solver, notes=solution.notes)
        return among, with_waits(self._road, among, chosen)
