"""What any method recomputes that holds so many bytes: the bound against brute force, and of recorded operators."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import autockpt
from autockpt.solvers import Dataflow, Item, Unit
from benchmarks.saved_bytes.bound import saved_bound, saved_dataflow
from tests.dataflow.flows import dataflows, every_choice, undominated
from tests.dataflow.test_bound import TOLERANCE, row_of_pairs


def cheapest_within(points: list[tuple[int, float]], held_bytes: float) -> float:
    return min((seconds for n_bytes, seconds in points if n_bytes <= held_bytes), default=math.inf)


def test_what_does_not_fit_is_run_again_in_part() -> None:
    flow = Dataflow(
        units=(Unit(name="fc", seconds=4.0, reads=(0,), makes=(1,)),),
        items=(Item(bytes=2, saved=True), Item(bytes=8, saved=True)),
    )
    found = [saved_bound(flow, held_bytes) for held_bytes in (10, 6, 2, 1)]
    assert found == pytest.approx([0.0, 2.0, 4.0, math.inf], rel=TOLERANCE)


@settings(max_examples=200)
@given(dataflows(), st.integers(0, 60))
def test_no_choice_costs_less_than_the_bound(flow: Dataflow, held_bytes: int) -> None:
    points = [(c.held_bytes, c.recompute_seconds) for c in every_choice(flow)]
    assert saved_bound(flow, held_bytes) <= cheapest_within(points, held_bytes) + TOLERANCE


@settings(max_examples=100)
@given(dataflows(free_hand=True, max_units=6))
def test_the_bound_is_the_hull_where_every_unit_is_free(flow: Dataflow) -> None:
    """At a corner it is met; between two corners it is their mix, never more than it."""
    points = undominated([(c.held_bytes, c.recompute_seconds) for c in every_choice(flow)])
    for held_bytes, seconds in points:
        mixes = [
            right[1] + (left[1] - right[1]) * (held_bytes - right[0]) / (left[0] - right[0])
            for left in points
            for right in points
            if left[0] <= held_bytes < right[0] or right[0] < held_bytes <= left[0]
        ]
        assert saved_bound(flow, held_bytes) == pytest.approx(min([seconds, *mixes]), abs=TOLERANCE)
    if points[0][0]:
        assert saved_bound(flow, points[0][0] - 1) == math.inf
    bounds = [saved_bound(flow, held_bytes) for held_bytes in range(points[0][0], points[-1][0] + 1, 3)]
    assert all(before >= after for before, after in itertools.pairwise(bounds))


def test_recomputing_the_cheap_half_is_what_the_bound_asks_for() -> None:
    flow, _ = row_of_pairs(8)
    assert saved_bound(flow, flow.plain_bytes - 5 * 4) == pytest.approx(5.0)


def test_recorded_operators_are_bounded() -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)]
    recorded = autockpt.profile(nn.Sequential(*blocks), torch.randn(512, 32))
    saved = sum(recorded.tensors.bytes[t] for t in set(recorded.saves.tensor) if t >= 0)
    flow = saved_dataflow(recorded)
    bounds = [saved_bound(flow, int(saved * share)) for share in (1.0, 0.7, 0.5, 0.35)]
    assert bounds[0] == 0.0
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert bounds[-1] < sum(recorded.ops.seconds)
