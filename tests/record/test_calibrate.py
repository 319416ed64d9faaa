"""What recomputing costs the host, told apart from steps under plans made for that."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import autockpt
from autockpt._record.calibrate import BLOCKS, LEAST_SECONDS, NORM, UNITS, HostCosts, Timed, costs_of

PLANS = ("plain", "short", "long", "several", "calls", "function", "functions")

SECONDS = st.floats(1e-5, 1e-2)
SAVES = st.integers(1, 4)
FORWARD = st.lists(st.builds(Timed, seconds=SECONDS, saves=SAVES), min_size=2 * UNITS, max_size=2 * UNITS)
"""Functions of a block, then its calls."""


@st.composite
def host_costs(draw: st.DrawFn) -> HostCosts:
    """Costs of which a call's share in a segment is no more than the segment's."""
    costs = HostCosts(**{field.name: draw(SECONDS) for field in dataclasses.fields(HostCosts)})
    return dataclasses.replace(costs, member_seconds=min(costs.member_seconds, costs.replay_seconds))


def steps_of(costs: HostCosts, forward: list[Timed], plain_seconds: float) -> dict[str, float]:
    """Add up what a step takes under each plan, as the cost model says it."""
    functions, calls = forward[:UNITS], forward[UNITS:]

    def replayed(parts: list[Timed]) -> float:
        return costs.replay_seconds + sum(part.seconds + part.saves * costs.save_seconds for part in parts)

    def left_alone(parts: list[Timed]) -> float:
        return sum(costs.kept_seconds - part.seconds for part in parts)

    long = replayed(forward)
    watched = long + left_alone(functions[1:2]) + (1 + 2 * len(forward)) * costs.mode_seconds
    blocks = {
        "plain": 0.0,
        "short": replayed([calls[NORM]]),
        "long": long,
        "several": replayed(calls) + (UNITS - 1) * costs.member_seconds,
        "calls": long + left_alone(calls[1:]),
        "function": watched,
        "functions": watched + left_alone(functions[2:]),
    }
    return {name: plain_seconds + BLOCKS * seconds for name, seconds in blocks.items()}


@given(host_costs(), FORWARD, st.integers(1, 5))
def test_costs_are_those_that_steps_were_made_of(costs: HostCosts, forward: list[Timed], rounds: int) -> None:
    steps = {name: [seconds] * rounds for name, seconds in steps_of(costs, forward, 0.1).items()}
    found = costs_of(steps, [forward] * rounds)
    assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(costs), rel=1e-6, abs=1e-9)


@given(st.fixed_dictionaries({name: st.lists(SECONDS, min_size=2, max_size=2) for name in PLANS}), FORWARD)
def test_no_reading_makes_a_cost_nothing_or_a_call_dearer_than_its_segment(
    steps: dict[str, list[float]], forward: list[Timed]
) -> None:
    found = costs_of(steps, [forward, forward])
    assert found.replay_seconds >= 0.0
    assert min(found.member_seconds, found.save_seconds, found.kept_seconds, found.mode_seconds) >= LEAST_SECONDS
    assert found.member_seconds <= max(found.replay_seconds, LEAST_SECONDS)


def test_host_seconds_are_calibrated_where_time_is_measured() -> None:
    model, batch = nn.Linear(8, 8), torch.randn(4, 8)
    real, fake = (autockpt.profile(model, batch, mode=mode) for mode in ("real", "fake"))
    for cost in ("member", "save", "kept", "mode"):
        assert 0 < getattr(real, f"{cost}_host_seconds") < 1e-2 and getattr(fake, f"{cost}_host_seconds") == 0.0
