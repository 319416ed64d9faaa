"""Calls that a plan must recompute, stated so that every solver honours them without knowing of them.

required call    saves one more tensor, alive in every step and larger than any budget, unless it is recomputed
kept             base + that tensor          fits into nothing
recomputed       base                        the level of the plan without the requirement

So the judge alone decides: a plan that fits recomputes what is required, and its figures are as without the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import replace

from .errors import InvalidProblem
from .plans.blocks import widest_candidates
from .problem import Problem, Save, Tensor


def as_demands(problem: Problem) -> Problem:
    """State the required calls of a problem as tensors too large for any budget; exact, O(problem).

    In the problem returned, plans that recompute all required calls have the peak that they had. All others peak above
    `highest_bytes` of the problem given. Candidates keep their indices.

    Raises:
        InvalidProblem: no plan recomputes all of them.
    """
    if not problem.required:
        return problem
    if not coverable(problem, problem.required):
        names = ", ".join(problem.calls[call].name for call in problem.required[:6])
        raise InvalidProblem(f"no candidates that do not overlap recompute all of the required calls: {names}")
    sizes = [tensor.bytes for tensor in problem.tensors]
    sizes += [addition.bytes for candidate in problem.candidates for addition in candidate.additions]
    grain_bytes = math.gcd(*sizes) or 1  # with a multiple of all sizes' divisor, solvers need not round
    too_many_bytes = (highest_bytes(problem) // grain_bytes + 1) * grain_bytes
    saves = [(Save(call=call, until=len(problem.steps)),) for call in problem.required]
    more = [Tensor(bytes=too_many_bytes, free_step=0, saves=each, demand=True) for each in saves]
    return replace(problem, required=(), tensors=(*problem.tensors, *more))


def coverable(problem: Problem, calls: Collection[int]) -> bool:
    """Whether some plan recomputes all of the calls; O(calls + candidates)."""
    return _cover(problem, frozenset(calls), range(len(problem.candidates)), frozenset()) is not None


def completed(problem: Problem, plans: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return each plan once, completed by candidates for the demanded calls that it does not recompute.

    Whole calls and runs are added, and replace what they overlap. As few candidates of a plan as possible are replaced,
    then as few seconds as possible added; exact, O(calls + candidates).
    """
    demanded = frozenset(save.call for tensor in problem.tensors if tensor.demand for save in tensor.saves)
    whole: dict[tuple[int, ...], None] = {}
    for plan in plans:
        spans = (problem.candidates[c] for c in plan)
        found = None
        if demanded and not demanded <= {call for span in spans for call in range(span.start, span.stop)}:
            usable = {*plan, *widest_candidates(problem).values()}
            found = _cover(problem, demanded, sorted(usable), frozenset(plan))
        whole[tuple(sorted(plan)) if found is None else found] = None
    return list(whole)


def _cover(problem: Problem, demanded: Set[int], usable: Collection[int], wanted: Set[int]) -> tuple[int, ...] | None:
    """Choose from the usable candidates so that the demanded calls are recomputed; None if it is not possible.

    As many wanted ones as possible, then as few seconds, then as few segments.
    """
    n_calls = len(problem.calls)
    by_start: list[list[int]] = [[] for _ in range(n_calls)]
    for c in usable:
        by_start[problem.candidates[c].start].append(c)
    # From the last call back: the best score of what covers the calls from here on, and the candidate it begins with.
    best: list[tuple[int, float, int] | None] = [None] * n_calls + [(0, 0.0, 0)]
    first: list[int | None] = [None] * n_calls
    for call in range(n_calls - 1, -1, -1):
        best[call] = None if call in demanded else best[call + 1]
        for c in by_start[call]:
            after = best[problem.candidates[c].stop]
            if after is None:
                continue
            seconds = problem.candidates[c].recompute_seconds
            score = (after[0] + 1, *after[1:]) if c in wanted else (after[0], after[1] - seconds, after[2] - 1)
            here = best[call]
            if here is None or score > here:
                best[call], first[call] = score, c
    if best[0] is None:
        return None
    chosen, call = [], 0
    while call < n_calls:
        begun = first[call]
        if begun is None:
            call += 1
        else:
            chosen.append(begun)
            call = problem.candidates[begun].stop
    return tuple(sorted(chosen))


def highest_bytes(problem: Problem) -> int:
    """Bound the peak of any plan by everything that can be held or added; O(problem)."""
    added = sum(addition.bytes for candidate in problem.candidates for addition in candidate.additions)
    return max(step.base_bytes for step in problem.steps) + sum(tensor.bytes for tensor in problem.tensors) + added
