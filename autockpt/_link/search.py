"""Plans that move tensors beside the computing: how long they wait for the link, and a search that knows what it takes.

A window of the link is stated as one more step of the problem, in which a move stands with its bytes, and the base
leaves as much below the budget as the window takes. So whatever solves the problem keeps to both, and knows of no link.

    steps     forward ... backward | link out, h.3 to h.5 | link back, h.3 to h.5 | ...
    level     memory ≤ budget      | budget - what it takes + what passes in it ≤ budget
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from .._data.plan import Segment
from ..solvers import ilp
from ..solvers.columns import Columns
from ..solvers.common import judged
from ..solvers.deadline import Deadline
from ..solvers.judge import Judge
from ..solvers.pins import demand, highest_bytes
from ..solvers.problem import Addition, Problem, Solution, Step
from .road import Move, Road

FULL, APART, TRIES = 0.85, 0.15, 2
"""How full windows may get in the first search: the fuller, the cheaper, and the longer the device waits. So much less
in the next one where it waits, and more where it does not."""

SHARE = 0.6
"""Of the time the first search has this part."""

LITTLE = 0.02
"""Share of what moving gains up to which waiting is not worth another search."""


class Moving(Protocol):
    """What a candidate stands for: a segment, when its replay runs, and what it moves.

    Attributes:
        segment: with its seconds.
        tick: of its first replay.
        move: what goes over the link, if anything does.
        waits_seconds: of the segment's, those in which the step would wait if nothing else went over the link.
    """

    @property
    def segment(self) -> Segment: ...
    @property
    def tick(self) -> int: ...
    @property
    def move(self) -> Move | None: ...
    @property
    def waits_seconds(self) -> float: ...


Each = TypeVar("Each", bound=Moving)


def more_seconds(road: Road | None, chosen: Sequence[Moving]) -> float:
    """Return how much longer than the sum of its segments a plan takes: they count waits as if each were alone."""
    moves = [each.move for each in chosen if each.move is not None]
    if road is None or not moves:
        return 0.0
    again = [(each.tick, each.segment.recompute_seconds - each.waits_seconds) for each in chosen]
    return road.waiting_seconds(moves, again) - sum(each.waits_seconds for each in chosen)


def with_waits(road: Road | None, replays: Sequence[Moving], solution: Solution) -> Solution:
    """Return a solution among candidates with what the device waits for the link."""
    more = more_seconds(road, [replays[i] for i in solution.chosen])
    return replace(solution, recompute_seconds=max(solution.recompute_seconds + more, 0.0)) if more else solution


def with_windows(
    road: Road | None, replays: Sequence[Moving], problem: Problem, budget_bytes: int, full: float = 1.0
) -> Problem:
    """State what the link takes as steps behind all others; the problem as it is where no copies run beside."""
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
    """Return the columns of a problem that differs from theirs in the bases of its steps alone."""
    found, judge = copy.copy(columns), copy.copy(columns.judge)
    judge.problem, judge.base_bytes = problem, np.array([step.base_bytes for step in problem.steps])
    found.judge, found.base_bytes = judge, columns.base_bytes + judge.base_bytes - columns.judge.base_bytes
    return found


class Search(Generic[Each]):
    """Looks for plans that move tensors beside the computing, among some candidates.

    Args:
        road: the link; None where the step waits for every move.
        replays: the candidates, those of a plan to begin with among them.
        problem: they as a problem.
        state: states others as a problem.
        later: returns a candidate with later ends for its move.
    """

    def __init__(
        self,
        road: Road | None,
        replays: Sequence[Each],
        problem: Problem,
        *,
        state: Callable[[Sequence[Each]], Problem],
        later: Callable[[Each], Iterable[Each]],
    ) -> None:
        self._road, self._replays, self._problem, self._state, self._later = road, replays, problem, state, later

    def cheaper(
        self, best: Solution, budget_bytes: int, *, solver: str, deadline: Deadline
    ) -> tuple[Sequence[Each], Solution]:
        """Look for a plan that costs less than the best so far, and return it with the candidates that it is of.

        Heuristic: the programme of `ilp` with windows of the link, then later ends for what is late there; the link
        itself has the last word. Never above the best so far.

        Args:
            best: a plan within the budget, its waits counted.
            budget_bytes: what it has to keep to.
            solver: who asks; see `ilp.search`.
            deadline: when to be done.
        """
        start, before, known = (best.chosen, best.solver), best.recompute_seconds, self._replays
        columns, full, budget_bytes = None, FULL, min(budget_bytes, highest_bytes(self._problem))
        for number in range(TRIES if self._road is not None else 1):
            windowed = demand(with_windows(self._road, self._replays, self._problem, budget_bytes, full))
            columns = Columns(Judge(windowed)) if columns is None else _with_bases(columns, windowed)
            until = deadline.share(SHARE) if self._road is not None and not number else deadline
            searched = ilp.search(columns, start, budget_bytes, deadline=until, asked=solver)
            among, found = self._with_time(searched, budget_bytes)
            if found.recompute_seconds < best.recompute_seconds:
                known, best = among, found
            if deadline.passed or not (searched.recompute_seconds < before):
                break
            waits = found.recompute_seconds - searched.recompute_seconds
            full += -APART if waits > LITTLE * (before - searched.recompute_seconds) else APART
        return known, best

    def _with_time(self, solution: Solution, budget_bytes: int) -> tuple[Sequence[Each], Solution]:
        """Give moves more time as long as that is less to wait: only near the peak is there no memory for it."""
        groups = [[self._replays[i], *self._later(self._replays[i])] for i in solution.chosen]
        rows = [(number, place) for number, group in enumerate(groups) for place in range(len(group))]
        numbers, among = {row: i for i, row in enumerate(rows)}, [groups[number][place] for number, place in rows]
        problem, places = self._state(among), [0] * len(groups)
        judge = Judge(problem)

        def plan() -> list[int]:
            return [numbers[row] for row in enumerate(places)]

        def waits() -> float:
            return more_seconds(self._road, [among[i] for i in plan()])

        least, better = waits(), True
        while least > 0.0 and better:
            better = False
            for number, group in enumerate(groups):
                if places[number] + 1 < len(group):
                    places[number] += 1
                    if judge.peak(plan()) <= budget_bytes and (now := waits()) <= least:
                        least, better = now, True
                    else:
                        places[number] -= 1
        chosen = judged(problem, plan(), solver=solution.solver, notes=solution.notes)
        return among, with_waits(self._road, among, chosen)
