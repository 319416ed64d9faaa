"""What is worked out of ways to train a compiled model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.compile.beside.arithmetic import (
    at_equal_peak,
    beside_eager,
    dominated,
    falls,
    lines,
    lowest_beside_torchs,
    over_budget,
)
from benchmarks.compile.beside.report import show


def row(way: str, asked: float | None, peak_bytes: int, ratio: float, **more: Any) -> dict[str, Any]:
    found = {"way": way, "asked": asked, "peak_bytes": peak_bytes, "first_bytes": peak_bytes, "ratio": ratio}
    found |= {"bits": True, "right": True, "relative_difference": 0.0, "ratio_error": 0.001, "compile_seconds": 1.0}
    return found | {"predicted_seconds": ratio - 1} | more


ROWS = [
    row("plain", None, 100, 1.0),
    row("torch", 0.0, 30, 0.9, right=False, bits=False),
    row("torch", 0.5, 60, 1.1),
    row("torch", 0.9, 80, 1.2),
    row("ours, lowest", None, 40, 1.3),
    row("ours", 40, 40, 1.3),
    row("ours", 70, 70, 1.05),
    row("ours at torch's peak", 60, 60, 1.11),
    row("ours at torch's peak", 80, 80, 1.04),
    row("eager plan", 70, 70, 1.2),
    {"way": "eager plan", "asked": 40, "lowest_bytes": 50},
]


def test_only_right_steps_of_torchs_count_and_the_fastest_within_a_peak() -> None:
    assert lowest_beside_torchs(ROWS) == pytest.approx(40 / 60)
    pairs = [(own["ratio"], its["ratio"]) for own, its in at_equal_peak(ROWS)]
    assert pairs == [(1.11, 1.1), (1.04, 1.1)]
    assert beside_eager(ROWS) == pytest.approx([0.25])
    assert not [*dominated(ROWS), *falls(ROWS), *over_budget(ROWS)]


def test_what_falls_short_is_named() -> None:
    rows = [*ROWS, row("ours", 75, 65, 1.5), row("ours", 90, 91, 1.0)]
    assert len(falls(rows)) == 2 and "75 B" in falls(rows)[0]
    assert over_budget(rows) == ["1.11% at 90 B"]
    assert dominated(rows) == ["+0.400 ± 0.001 at 65 B"]
    missed = [line.name for line in lines({"one": rows}) if not line.met]
    assert missed == [
        "steps above their budget",
        "larger budgets with a lower peak, or with more predicted to run again",
        "peaks of ours at which torch is right and faster by more than that",
    ]
    page = show({"aot_eager": {"one": {"rows": rows}}})
    assert "1.11% at 90 B" in page and "infeasible: 0.5000" in page and "**wrong**" in page


@given(st.integers(1, len(ROWS)))
def test_a_run_that_was_cut_off_is_shown(count: int) -> None:
    cut = [{key: value for key, value in each.items() if not key.startswith("ratio")} for each in ROWS[:count]]
    assert "| line |" in show({"aot_eager": {"one": {"rows": cut}}})
