"""Megatron's block method: the first n elements of the chain recomputed, each by itself."""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import block_chain
from .families import TIME_LIMIT_SECONDS, Plan, cheapest
from .ledger import Ledger
from .problem import Problem, Solution


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Recompute the first n elements of the block chain, each by itself, with the smallest n that fits.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: not needed; it is instant.

    Returns:
        The cheapest plan that fits.

    Raises:
        Infeasible: no n fits.

    Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models";
    Megatron-LM's ``--recompute-method block``.
    Exact on its family of n + 1 plans for n elements; O(n × problem).
    """
    ledger = Ledger.of(problem)
    return cheapest(ledger, block_plans(ledger), budget_bytes=budget_bytes, solver="block", trimmed=False)


def block_plans(ledger: Ledger) -> Iterator[Plan]:
    """Plans that recompute the first 0, 1, … n elements of the chain."""
    every = tuple(block_chain(ledger.problem).runs(1))
    for n in range(len(every) + 1):
        yield every[:n]
