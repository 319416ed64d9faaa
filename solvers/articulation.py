"""Greedy over articulation points: cut where few bytes cross, recompute what frees most bytes a second.

crossing    5   2   5   5   2   5   5   2          bytes that live on past the cut because something
calls     a   b   c   d   e   f   g   h            behind it would be recomputed
cuts          │           │           │            local minima

The cuts bound the segments; which of them are recomputed is a greedy choice that the judge ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from .blocks import BlockChain, block_chain
from .families import TIME_LIMIT_SECONDS, Plan, cheapest
from .ledger import Ints, Ledger
from .problem import Problem, Solution
from .sqrt import byte_grid


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Cut the block chain at articulation points, then recompute segment after segment until the budget is met.

    A single tensor crosses almost nowhere in real models (masks, position tables, skips), so a point is a
    local minimum of the bytes that cross, counted only as far as recomputing prolongs their life.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: not needed; it is instant.

    Returns:
        The cheapest plan that fits, without the segments that it does not need.

    Raises:
        Infeasible: no such plan fits.

    Source: the "memory" heuristic of T. Salimans and Y. Bulatov 2018, "Fitting larger networks into memory"
    (OpenAI), with bytes in place of counts, a greedy choice among segments, and a judge.
    Heuristic; O(grid × segments × problem).
    """
    ledger = Ledger.of(problem)
    return cheapest(
        ledger,
        articulation_plans(ledger, budget_bytes),
        budget_bytes=budget_bytes,
        solver="articulation",
        trimmed=True,
    )


def articulation_plans(ledger: Ledger, budget_bytes: int) -> Iterator[Plan]:
    """The plain plan, every cut of the chain recomputed whole, and every cut grown until the budget is met."""
    yield ()
    chain = block_chain(ledger.problem)
    pieces = _pieces(chain, articulation_points(ledger, chain))
    plain = ledger.levels(())
    effect: dict[int, Ints] = {}
    for segments in dict.fromkeys(_join(chain, pieces, most_bytes) for most_bytes in byte_grid(chain)):
        for c in segments:
            if c not in effect:
                effect[c] = ledger.levels((c,)) - plain
        yield _grow(ledger, segments, effect, budget_bytes)
        yield segments


def articulation_points(ledger: Ledger, chain: BlockChain) -> tuple[int, ...]:
    """Positions in the chain where a segment should start: local minima of the bytes that cross.

    What crosses is the boundary of the longest candidate that starts there, leaving out tensors that live as
    long in any case.
    """
    problem = ledger.problem
    longest: dict[int, int] = {}
    for c, candidate in enumerate(problem.candidates):
        if candidate.start not in longest or candidate.stop > problem.candidates[longest[candidate.start]].stop:
            longest[candidate.start] = c
    crossing: list[int | None] = []
    for element in chain.elements:
        crossing.append(
            None
            if element not in longest
            else sum(
                problem.tensors[hold.tensor].bytes
                for hold in problem.candidates[longest[element]].holds
                if hold.until > problem.tensors[hold.tensor].free_step
            )
        )

    points = []
    for i, here in enumerate(crossing):
        before = crossing[i - 1] if i > 0 and chain.siblings(i - 1, i) else None
        after = crossing[i + 1] if i + 1 < len(crossing) and chain.siblings(i, i + 1) else None
        if here is None or before is None or (here <= before and (after is None or here <= after)):
            points.append(i)
    return tuple(points)


def _pieces(chain: BlockChain, points: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Runs of elements, first and last, from each point to the next; single elements where no candidate spans."""
    pieces: list[tuple[int, int]] = []
    for first, after in pairwise((*points, len(chain.elements))):
        if chain.candidate(first, after - 1) is not None:
            pieces.append((first, after - 1))
        else:
            pieces.extend((i, i) for i in range(first, after))
    return tuple(pieces)


def _join(chain: BlockChain, pieces: Sequence[tuple[int, int]], most_bytes: float) -> Plan:
    """Join neighbouring pieces into segments as long as they save no more than `most_bytes`."""
    segments: list[int] = []
    at = 0
    while at < len(pieces):
        first, last = pieces[at]
        segment, at = chain.candidate(first, last), at + 1
        while segment is not None and at < len(pieces):
            longer = chain.candidate(first, pieces[at][1])
            if longer is None or sum(chain.saved_bytes[first : pieces[at][1] + 1]) > most_bytes:
                break
            segment, at = longer, at + 1
        if segment is not None:
            segments.append(segment)
    return tuple(segments)


def _grow(ledger: Ledger, segments: Plan, effect: dict[int, Ints], budget_bytes: int) -> Plan:
    """Add the segment that removes most bytes above the budget per second, until the budget is met.

    Effects of segments are taken as if they added up, which shared boundaries do not quite; the true levels
    are computed after each addition.
    """
    grown: list[int] = []
    rest = list(segments)
    levels = ledger.levels(())
    while rest and int(levels.max()) > budget_bytes:
        above_bytes = int(np.maximum(levels - budget_bytes, 0).sum())
        gains = [above_bytes - int(np.maximum(levels + effect[c] - budget_bytes, 0).sum()) for c in rest]
        seconds = [ledger.problem.candidates[c].recompute_seconds for c in rest]
        best = max(range(len(rest)), key=lambda i: (_rate(gains[i], seconds[i]), gains[i]))
        if gains[best] <= 0:
            break
        grown.append(rest.pop(best))
        levels = ledger.levels(grown)
    return tuple(sorted(grown))


def _rate(gain_bytes: int, seconds: float) -> float:
    """Bytes per second; what costs nothing comes first if it gains at all."""
    if seconds > 0.0:
        return gain_bytes / seconds
    return float("inf") if gain_bytes > 0 else float("-inf")
