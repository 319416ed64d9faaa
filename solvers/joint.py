"""Several rows of the lower bound at once, as one linear programme: a unit is paid once for all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .backends import Backend, pulp_module, run
from .row import Row

__all__ = ["joint_bound"]

SCALE = 1000.0
"""Sizes and costs are scaled to this, so that tolerances of 1e-6 are 1e-9 of the whole."""

SAFE = 1e-6
"""Share of the bound that is given up for the solvers' tolerances."""


def joint_bound(
    rows: Sequence[Row], seconds: Sequence[float], deadline: float, backend: Backend
) -> tuple[float, npt.NDArray[np.float64]] | None:
    """Fewest recompute seconds, in fractions of units, with which every row has room for what it holds.

    Args:
        rows: at least one.
        seconds: per unit.
        deadline: on the clock of `time.perf_counter`.
        backend: who solves it.

    Returns:
        The seconds, a hair too low, and how much of each unit runs again; None if there was no time.

    Raises:
        BackendError: the backend failed, or answered nonsense.

    A linear programme of about two columns an op and row.
    """
    pulp = pulp_module()
    if time.perf_counter() >= deadline:
        return None
    lp = pulp.LpProblem("bound", pulp.LpMinimize)
    cost_unit = max(seconds, default=0.0) / SCALE or 1.0
    used = sorted({u for row in rows for u in row.unit if u >= 0})
    paid = {u: lp.add_variable(f"r{u}", 0, 1) for u in used}
    lp.setObjective(pulp.LpAffineExpression([(paid[u], seconds[u] / cost_unit) for u in used]))
    for i, row in enumerate(rows):
        nodes = [lp.add_variable(f"n{i}_{node}", 0, 1) for node in range(len(row.unit))]
        for node, others in enumerate(row.implies):
            for other in others:
                _at_most(lp, pulp, [(nodes[node], 1.0), (nodes[other], -1.0)], 0.0)
            if row.unit[node] >= 0:
                _at_most(lp, pulp, [(nodes[node], 1.0), (paid[row.unit[node]], -1.0)], 0.0)
        size_unit = (row.needed_bytes or 1) / SCALE
        terms = [(nodes[node], w / size_unit) for node, w in enumerate(row.weights_bytes) if w]
        _at_most(lp, pulp, terms, (row.room_bytes - row.needed_bytes) / size_unit)
    left = deadline - time.perf_counter()
    run(lp, backend, time_limit_seconds=left, whole=False)
    if lp.sol_status != pulp.LpSolutionOptimal:
        return None
    again = np.zeros(len(seconds))
    for u, column in paid.items():
        again[u] = min(max(column.varValue or 0.0, 0.0), 1.0)
    return float(pulp.value(lp.objective)) * cost_unit * (1.0 - SAFE), again


def _at_most(lp: Any, pulp: Any, terms: list[tuple[Any, float]], rhs: float) -> None:
    lp.addConstraint(pulp.LpConstraint(pulp.LpAffineExpression(terms), pulp.LpConstraintLE, rhs=rhs))
