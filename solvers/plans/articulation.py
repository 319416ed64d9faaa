"""Greedy over articulation points: cut where few bytes cross, recompute what frees most bytes a second.

    crossing    5   2   5   5   2   5   5   2          bytes that live on past the cut because something
    calls     a   b   c   d   e   f   g   h            behind it would be recomputed
    cuts          │           │           │            local minima

The cuts bound the segments; which of them are recomputed is a greedy choice that the judge ends:

    symbol   meaning                                                       name here
    L_t      level in step t under the plan so far                         ``levels``
    M        budget                                                        ``budget_bytes``
    d_gt     change of L_t if segment g alone is recomputed                ``effect[g]``
    s_g      recompute seconds of g                                        ``Candidate.recompute_seconds``

    while max_t L_t > M:   add the g with most   (Σ_t max(L_t − M, 0) − Σ_t max(L_t + d_gt − M, 0)) / s_g

Example: three calls in a row save 4, 2 and 4 bytes and cost 1, 4 and 1 seconds; all 10 bytes are alive in one step.
With M = 6 they gain 4, 2 and 4 bytes: 4, 1/2 and 4 a second. The first call is added, which leaves 6 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ..common import Plan
from ..deadline import NEVER, Deadline
from ..judge import Ints, Judge
from .baselines import byte_grid
from .blocks import BlockChain, block_chain

LEAST = 1e-30  # seconds that count for what costs nothing
MOST_GROWN = 400  # a cut into more segments is recomputed whole: to grow it takes segments² × steps


def articulation_plans(judge: Judge, budget_bytes: int, *, deadline: Deadline = NEVER) -> Iterator[Plan]:
    """Cut the block chain at articulation points, then recompute segment after segment until the budget is met.

    In real models more than one tensor crosses almost everywhere (masks, position tables, skips). So a point is a local
    minimum of the bytes that cross; only tensors whose life recomputing prolongs count. Yields the plain plan; then,
    for every cut of the chain, a plan that takes segments until the budget is met, and one that takes them all.
    Segments that are not needed are dropped.

    Source: the "memory" heuristic of T. Salimans and Y. Bulatov 2018, "Fitting larger networks into memory"
    (OpenAI), with bytes in place of counts, a greedy choice among segments, and a judge.
    Heuristic; O(grid × segments × problem).
    """
    yield ()
    chain = block_chain(judge.problem)
    pieces = _pieces(chain, articulation_points(judge, chain))
    plain = judge.levels(())
    effect: dict[int, Ints] = {}
    for segments in dict.fromkeys(chain.joined(pieces, most_bytes) for most_bytes in byte_grid(chain)):
        for c in segments if len(segments) <= MOST_GROWN else ():
            if c not in effect and not deadline.passed:
                effect[c] = judge.levels((c,)) - plain
        if len(segments) <= MOST_GROWN and not deadline.passed:
            yield _grow(judge, segments, effect, budget_bytes, deadline)
        yield segments


def articulation_points(judge: Judge, chain: BlockChain) -> tuple[int, ...]:
    """Positions in the chain where a segment should start: local minima of the bytes that cross.

    What crosses is the boundary of the longest candidate that starts there, leaving out tensors that live as
    long in any case.
    """
    problem = judge.problem
    longest: dict[int, int] = {}
    for c, candidate in enumerate(problem.candidates):
        if candidate.start not in longest or candidate.stop > problem.candidates[longest[candidate.start]].stop:
            longest[candidate.start] = c
    crossing: list[int | None] = []
    for element in chain.elements:
        holds = problem.candidates[longest[element]].holds if element in longest else ()
        late = [problem.tensors[t].bytes for t, until in holds if until > problem.tensors[t].free_step]
        crossing.append(sum(late) if element in longest else None)
    return tuple(i for i in range(len(crossing)) if _is_lowest(chain, crossing, i))


def _is_lowest(chain: BlockChain, crossing: Sequence[int | None], i: int) -> bool:
    """Whether no sibling beside an element has fewer bytes that cross; so is each that begins a row of siblings."""
    here = crossing[i]
    before = crossing[i - 1] if i > 0 and chain.siblings(i - 1, i) else None
    after = crossing[i + 1] if i + 1 < len(crossing) and chain.siblings(i, i + 1) else None
    return here is None or before is None or (here <= before and (after is None or here <= after))


def _pieces(chain: BlockChain, points: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Runs of elements, first and last, from each point to the next; single elements where no candidate spans."""
    pieces: list[tuple[int, int]] = []
    for first, after in pairwise((*points, len(chain.elements))):
        if chain.candidate(first, after - 1) is not None:
            pieces.append((first, after - 1))
        else:
            pieces.extend((i, i) for i in range(first, after))
    return tuple(pieces)


def _grow(judge: Judge, segments: Plan, effect: dict[int, Ints], budget_bytes: int, deadline: Deadline) -> Plan:
    """Add the segment that removes most bytes above the budget per second, until the budget is met.

    The effects of segments are added up, which is not quite right if they share boundaries. So the true levels are
    computed after each addition.
    """
    grown: list[int] = []
    rest = list(segments)
    levels = judge.levels(())
    while rest and int(levels.max()) > budget_bytes and not deadline.passed:
        above_bytes = int(np.maximum(levels - budget_bytes, 0).sum())
        gains = [above_bytes - int(np.maximum(levels + effect[c] - budget_bytes, 0).sum()) for c in rest]
        seconds = [max(judge.problem.candidates[c].recompute_seconds, LEAST) for c in rest]
        best = max(range(len(rest)), key=lambda i: (gains[i] / seconds[i], gains[i]))
        if gains[best] <= 0:
            break
        grown.append(rest.pop(best))
        levels = judge.levels(grown)
    return tuple(sorted(grown))
