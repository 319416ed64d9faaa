"""Keep what multiplies matrices, recompute the rest: block by block, as far as the budget asks for."""

from __future__ import annotations

from collections.abc import Iterator

from .families import TIME_LIMIT_SECONDS, Plan, cheapest
from .ledger import Ledger
from .problem import Problem, Solution

PRESET = "speed"
"""What candidates made for this solver are marked with."""


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Recompute the first n blocks but for their matrix products, convolutions and attention; the smallest n that fits.

    Which blocks, and what is kept inside, is in the candidates marked for it. Times are not looked at, since all
    plans of the family recompute the first of one row of blocks.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: not needed; it is instant.

    Returns:
        The plan with fewest blocks that fits.

    Raises:
        Infeasible: not even all blocks are enough.

    Source: the "speed" collection of T. Salimans and Y. Bulatov 2018, "Fitting larger networks into memory" (OpenAI):
    outputs of matrix products and convolutions are kept; Korthikanti et al. 2022, "Reducing activation recomputation
    in large transformer models": attention and element-wise work are what is worth recomputing.
    Exact on its family of n + 1 plans for n blocks; O(n × problem).
    """
    ledger = Ledger.of(problem)
    return cheapest(ledger, speed_plans(ledger), budget_bytes=budget_bytes, solver="speed", trimmed=False)


def speed_plans(ledger: Ledger) -> Iterator[Plan]:
    """Plans that take the marked candidates of the first 0, 1, … n blocks, where they free bytes at the plain peak."""
    candidates = ledger.problem.candidates
    plain = ledger.levels(())
    peak_step = int(plain.argmax())
    every: list[int] = []
    for c in sorted(range(len(candidates)), key=lambda c: candidates[c].start):
        free = not every or candidates[every[-1]].stop <= candidates[c].start
        if candidates[c].preset == PRESET and free and ledger.levels((c,))[peak_step] < plain[peak_step]:
            every.append(c)
    for n in range(len(every) + 1):
        yield tuple(every[:n])
