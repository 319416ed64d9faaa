"""Several rows of the lower bound at once, as one linear programme: a unit is paid once for all of them.

prices of the rows   prove the bound, by weak duality: it holds whatever they are
what runs again      tells which rows to make next
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .backends import Backend, nonsense, pulp_module, run
from .row import Row

_Priced: TypeAlias = tuple[Any, list[tuple[str, float]], float]
"""A row, at most a number: what PuLP knows it by, its columns with their weights, and the number."""

SCALE = 1000.0
"""Sizes and costs are scaled to this, so that tolerances of 1e-6 are 1e-9 of the whole."""

SAFE = 1e-9
"""Share of the bound that is given up for sums that are rounded."""


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
        Seconds that no such choice undercuts, whatever the backend answers, and how much of each unit runs again; None
        if there was no time.

    Raises:
        BackendError: the backend failed, or answered nonsense.

    A linear programme of about two columns an op and row. As near to its optimum as the backend's prices are.
    """
    pulp = pulp_module()
    if time.perf_counter() >= deadline:
        return None
    lp = pulp.LpProblem("bound", pulp.LpMinimize)
    cost_unit = max(seconds, default=0.0) / SCALE or 1.0
    used = sorted({u for row in rows for u in row.unit if u >= 0})
    paid = {u: lp.add_variable(f"r{u}", 0, 1) for u in used}
    costs = {paid[u].name: seconds[u] / cost_unit for u in used}
    lp.setObjective(pulp.LpAffineExpression([(column, costs[column.name]) for column in paid.values()]))
    priced: list[_Priced] = []

    def at_most(terms: list[tuple[Any, float]], rhs: float) -> None:
        row = pulp.LpConstraint(pulp.LpAffineExpression(terms), pulp.LpConstraintLE, rhs=rhs)
        lp.addConstraint(row)
        priced.append((row, [(column.name, weight) for column, weight in terms], rhs))

    for i, row in enumerate(rows):
        nodes = [lp.add_variable(f"n{i}_{node}", 0, 1) for node in range(len(row.unit))]
        for node, others in enumerate(row.implies):
            for other in others:
                at_most([(nodes[node], 1.0), (nodes[other], -1.0)], 0.0)
            if row.unit[node] >= 0:
                at_most([(nodes[node], 1.0), (paid[row.unit[node]], -1.0)], 0.0)
        size_unit = (row.needed_bytes or 1) / SCALE
        terms = [(nodes[node], w / size_unit) for node, w in enumerate(row.weights_bytes) if w]
        at_most(terms, (row.room_bytes - row.needed_bytes) / size_unit)
    left = deadline - time.perf_counter()
    run(lp, backend, time_limit_seconds=left, whole=False)
    if lp.sol_status != pulp.LpSolutionOptimal:
        return None
    again = np.zeros(len(seconds))
    for u, column in paid.items():
        again[u] = min(max(column.varValue or 0.0, 0.0), 1.0)
    proven = _proven(costs, priced)
    if not math.isfinite(proven):
        raise nonsense(backend, "prices of rows that are no numbers")
    return max(proven, 0.0) * cost_unit * (1.0 - SAFE), again


def _proven(costs: Mapping[str, float], priced: Sequence[_Priced]) -> float:
    """What the prices of rows prove of the least cost, with every column between 0 and 1; not finite if they are none.

    Source: weak duality (Gale, Kuhn and Tucker 1951): true of all prices that are not negative, tight for the best.
    """
    reduced = dict(costs)
    proven = 0.0
    for row, terms, rhs in priced:
        price = max(math.nan if row.pi is None else -row.pi, 0.0)
        proven -= price * rhs
        for name, weight in terms:
            reduced[name] = reduced.get(name, 0.0) + price * weight
    return proven + math.fsum(min(value, 0.0) for value in reduced.values())
