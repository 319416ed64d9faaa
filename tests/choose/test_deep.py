"""Rows of many siblings: √n stays √n however long they are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import autockpt
from tests.handmade import MIB, row_profile


@pytest.mark.parametrize("solver", ["sqrt", "articulation", "uniform"])
@settings(max_examples=3, deadline=None)
@given(n=st.integers(100, 400), kinds=st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3))
@example(n=144, kinds=[16])
@example(n=512, kinds=[16])
def test_long_rows_hold_about_the_square_root_of_their_blocks(solver: str, n: int, kinds: list[int]) -> None:
    """Of a long row not all runs are candidates, and where one was missing each block became a segment of its own."""
    profile = row_profile([kinds[i % len(kinds)] * MIB for i in range(n)])
    plan = autockpt.solve(profile, "lowest", solver=solver)
    block = (profile.plain_peak_bytes - profile.static.parameter_bytes - profile.static.input_bytes) / n
    assert plan.peak_bytes <= (2 * math.sqrt(n) + 1) * block
    assert plan.recompute_seconds <= profile.plain_seconds / 3  # a forward


@pytest.mark.parametrize("solver", ["sqrt", "articulation", pytest.param("uniform", marks=pytest.mark.sweep)])
def test_two_thousand_blocks_have_a_plan(solver: str) -> None:
    profile = row_profile([16 * MIB] * 2048)
    plan = autockpt.solve(profile, "lowest", solver=solver)
    assert plan.peak_bytes <= (2 * math.sqrt(2048) + 1) * profile.plain_peak_bytes / 2048


@pytest.mark.parametrize("solver", ["uniform:2", "block:2", "always", "except_last", "never"])
def test_a_model_that_is_one_block_has_named_plans_too(solver: str) -> None:
    """Its chain is the model's own call. `uniform:2` ended in a ValueError."""
    layers = (torch.nn.Linear(16, 16) for _ in range(6))
    profile = autockpt.profile(torch.nn.Sequential(*layers), torch.randn(64, 16))
    assert autockpt.solve(profile, "1GB", solver=solver).segments == ()
