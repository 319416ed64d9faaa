"""Megatron's uniform method: the whole chain recomputed, in runs of equal length."""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import block_chain
from .families import TIME_LIMIT_SECONDS, Plan, cheapest
from .ledger import Ledger
from .problem import Problem, Solution


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Recompute the whole block chain in runs of k elements, with the best k.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: not needed; it is instant.

    Returns:
        The cheapest plan that fits.

    Raises:
        Infeasible: no k fits.

    Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models";
    Megatron-LM's ``--recompute-method uniform``.
    Exact on its family of n plans for n elements; O(n × problem).
    """
    ledger = Ledger.of(problem)
    return cheapest(ledger, uniform_plans(ledger), budget_bytes=budget_bytes, solver="uniform", trimmed=False)


def uniform_plans(ledger: Ledger) -> Iterator[Plan]:
    """Plans with runs of 1, 2, … n elements; runs stay inside one group of siblings."""
    chain = block_chain(ledger.problem)
    longest = max((candidate.length for candidate in ledger.problem.candidates), default=1)
    for length in range(1, max(min(len(chain.elements), longest), 1) + 1):
        yield tuple(chain.runs(length))
