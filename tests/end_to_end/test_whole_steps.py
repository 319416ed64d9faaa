"""The whole step at budgets from the lowest that can be reached to the plain one, the optimizer's own step included.

Every row of benchmarks/budgets/twenty is one of `make sweep`; a few of one model are run every day.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from benchmarks.budgets.twenty import BUDGETS, OPTIMIZERS, TIME_LIMIT_SECONDS, run_model
from benchmarks.models import SMALL, build
from tests.counted import counted_time
from tests.end_to_end.reference import Reference

DAILY = "uneven", "adamw"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer", "budgets", "seconds"),
    [
        (*DAILY, 12, 1.0),
        *(
            pytest.param(model, optimizer, BUDGETS, TIME_LIMIT_SECONDS, marks=pytest.mark.sweep)
            for model in SMALL
            for optimizer in OPTIMIZERS
        ),
    ],
)
def test_budgets_hold_predictions_are_right_and_none_is_wasted(
    model: str, optimizer: str, budgets: int, seconds: float
) -> None:
    with counted_time():
        found = run_model(Reference(build(model)), optimizer, budgets=budgets, seconds=seconds)
    rows: list[dict[str, Any]] = found["rows"]
    assert len(rows) == budgets
    assert [row for row in rows if not row["within"]] == []
    assert [row for row in rows if not row["exact"]] == []
    assert [row for row in rows if not row["used"]] == []
    assert [row for row in rows if row["segments"] and not (row["replayed_operators"] and row["freed_bytes"] > 0)] == []
    assert any(row["segments"] for row in rows)
    assert all(less["recompute_seconds"] >= more["recompute_seconds"] for less, more in pairwise(rows))
    assert max(abs(row["error"]) for row in rows) <= 0.01
    assert sorted(abs(row["error"]) for row in rows)[budgets // 2] <= 0.001
