"""The arithmetic behind benchmarks/frontier: peaks, frontiers, and what is said of a point between them."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.frontier.analysis import compare_rows, summarise
from benchmarks.frontier.derive import (
    LEAST_OVERHEAD,
    cost_ratio,
    geometric_mean,
    highest,
    interpolate,
    lower_frontier,
    standard_error,
)
from benchmarks.frontier.store import load, store

POINTS = st.lists(st.tuples(st.integers(0, 20).map(float), st.integers(0, 20).map(float)), min_size=1)


@given(POINTS)
def test_a_frontier_holds_just_the_points_that_no_other_beats(points: list[tuple[float, float]]) -> None:
    unbeaten = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}
    assert lower_frontier(points) == sorted(unbeaten)


@given(POINTS, st.integers(-5, 25).map(float))
def test_between_points_lies_the_line_above_them_the_last_and_below_them_nothing(
    points: list[tuple[float, float]], peak: float
) -> None:
    frontier = lower_frontier(points)
    found = interpolate(frontier, peak)
    if peak < frontier[0][0] or peak > frontier[-1][0]:
        assert found == (None if peak < frontier[0][0] else frontier[-1][1])
        return
    left = max(p for p in frontier if p[0] <= peak)
    right = min(p for p in frontier if p[0] >= peak)
    assert found is not None
    assert (found - left[1]) * (right[0] - left[0]) == pytest.approx((right[1] - left[1]) * (peak - left[0]))
    assert right[1] <= found <= left[1]


def test_an_overhead_within_the_noise_does_not_make_a_ratio() -> None:
    assert cost_ratio(0.1, 0.4) == pytest.approx(0.25)
    assert cost_ratio(-0.02, LEAST_OVERHEAD / 2) == 1
    assert cost_ratio(0.0, 0.5) == pytest.approx(LEAST_OVERHEAD / 0.5)


def test_the_mean_is_geometric() -> None:
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_the_standard_error_is_how_far_medians_scatter() -> None:
    draw = random.Random(0)
    samples = [[draw.gauss(1.1, 0.05) for _ in range(41)] for _ in range(1000)]
    quartiles = [statistics.quantiles(sample, n=4) for sample in samples]
    scatter = statistics.stdev(median for _, median, _ in quartiles)
    said = statistics.mean(standard_error((first, third), 41) for first, _, third in quartiles)
    assert said == pytest.approx(scatter, rel=0.1)


def test_a_level_leaves_out_only_the_last_block_at_an_address() -> None:
    changes = [(1, 10), (2, 5), (1, -10), (9, -99), (1, 7), (3, 1)]  # address 9 is older than the step
    assert highest(changes, []) == 15
    assert highest(changes, [1]) == 15  # the block of 10 counts, that of 7 does not
    assert highest([(1, 10), (2, 5), (3, 4), (3, -4)], [2]) == 14


def row(family: str, peak: float, time: float, **other: object) -> dict[str, Any]:
    given = {"flops_ratio": 1 + time, "gradients": "equal", "buffers": "equal", "time": {"ratio": 1 + time}}
    return {"family": family, "setting": "", "peak_ratio": peak, **given, **other}


def test_rivals_count_with_right_gradients_only_and_never_beyond_their_reach() -> None:
    rows = [
        row("uniform", 0.2, 0.4),
        row("block", 0.6, 0.2),
        row("block", 0.3, 0.0, gradients="wrong"),
        row("compile", 0.5, 0.1, gradients="close"),
        row("compile", 0.1, 0.0, gradients="wrong"),
        {"family": "sac_ilp", "setting": "", "error": "dies"},
        row("autockpt", 0.4, 0.15, met=True, predicted_overhead=0.12),
        row("autockpt", 0.8, 0.05, met=False, predicted_overhead=0.05),
    ]
    low, high = compare_rows(rows)
    assert low.theirs["time", "eager"] == pytest.approx(0.3)
    assert low.theirs["time", "compile"] is None
    assert high.theirs["time", "eager"] == pytest.approx(0.1)  # between the blocks and the plain step
    assert high.theirs["time", "compile"] == pytest.approx(0.04)
    summary = summarise([low, high])
    assert (summary.points, summary.good, summary.reached) == (2, 1, {"eager": 2, "compile": 1})
    assert summary.means["time", "eager"] == pytest.approx(0.5)
    assert summary.worst_prediction == pytest.approx(0.03)


def test_families_that_run_again_replace_their_rows_and_say_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.frontier.store.environment", dict)
    old = [row("plain", 1.0, 0.0), row("block", 0.5, 0.2), row("autockpt", 0.5, 0.3), row("autockpt", 0.4, 0.4)]
    new = [row("plain", 1.0, 0.01), row("autockpt", 0.5, 0.1)]
    store(tmp_path, "gpt2", old, "small")
    store(tmp_path, "bert", old, "small")
    store(tmp_path, "gpt2", new, "small", again=True)
    stored = load(tmp_path, "small")
    assert stored["gpt2"]["rows"] == [old[1], *new]
    assert list(stored["gpt2"]["again"]) == ["plain", "autockpt"]
    assert stored["bert"]["rows"] == old and "again" not in stored["bert"]
    store(tmp_path, "gpt2", old, "small")
    assert load(tmp_path, "small")["gpt2"]["rows"] == old
    assert "again" not in load(tmp_path, "small")["gpt2"]
    assert load(tmp_path, "large") == {}
