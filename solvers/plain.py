"""The two ends: recompute nothing, or every element of the block chain by itself."""

from __future__ import annotations

from .blocks import block_chain
from .families import TIME_LIMIT_SECONDS, Plan, cheapest
from .ledger import Ledger
from .problem import Problem, Solution


def solve_none(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Recompute nothing.

    Raises:
        Infeasible: the plain step is above the budget.

    Exact on its family of one plan; O(problem).
    """
    return cheapest(Ledger.of(problem), [()], budget_bytes=budget_bytes, solver="none", trimmed=False)


def solve_all(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Recompute every element of the block chain as a segment of its own.

    Raises:
        Infeasible: that plan is above the budget.

    Source: the usual switch of model libraries ("gradient checkpointing": one segment a block).
    Exact on its family of one plan; O(problem).
    """
    ledger = Ledger.of(problem)
    return cheapest(ledger, [every_block(ledger)], budget_bytes=budget_bytes, solver="all", trimmed=False)


def every_block(ledger: Ledger) -> Plan:
    """The plan that recomputes every element of the block chain by itself."""
    return tuple(block_chain(ledger.problem).runs(1))
