"""The bound on what any method recomputes, from recorded operators."""

from __future__ import annotations

import functools
import math

import msgspec
import pytest
import torch
from torch import nn

import autockpt
from autockpt import Profile
from autockpt.solvers import simulate
from tests.dataflow.test_bound import cheapest_schedule
from tests.doors import ProfileIndex, find_candidates, lay_out, least_seconds
from tests.handmade import chain_profile


@functools.lru_cache
def profile() -> Profile:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)]
    return autockpt.profile(nn.Sequential(*blocks), torch.randn(512, 32))


def least_recompute_seconds(recorded: Profile, budget_bytes: int) -> float | None:
    return least_seconds(*lay_out(ProfileIndex(recorded)), budget_bytes)


def test_no_plan_is_cheaper_and_less_memory_never_needs_less() -> None:
    recorded = profile()
    plain = simulate(find_candidates(recorded).problem, ()).peak_bytes
    bounds = []
    for share in (1.0, 0.9, 0.8, 0.7, 0.6):
        plan = autockpt.solve(recorded, int(plain * share))
        bound = least_recompute_seconds(recorded, int(plain * share))  # what a plan says is held against the plan
        assert bound is not None
        assert bound <= plan.recompute_seconds
        assert plan.lower_bound_seconds == (bound if plan.segments else 0.0)
        bounds.append(bound)
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0 < bounds[-1]


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert least_recompute_seconds(profile(), 1) is None
    assert least_recompute_seconds(chain_profile(), 1 << 40) is None  # written by hand, without operators


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_a_bound_rests_on_the_operators_seconds(share: float) -> None:
    recorded = profile()
    plain = simulate(find_candidates(recorded).problem, ()).peak_bytes
    ops = recorded.ops
    slower = msgspec.structs.replace(
        recorded, ops=msgspec.structs.replace(ops, seconds=tuple(2 * s for s in ops.seconds))
    )
    one, two = (least_recompute_seconds(each, int(plain * share)) for each in (recorded, slower))
    assert one is not None and two == pytest.approx(2 * one, rel=1e-3)


@pytest.mark.parametrize("tail", [nn.GELU, nn.Tanh, nn.Softplus])
def test_no_schedule_of_a_recorded_step_costs_less_than_the_bound(tail: type[nn.Module]) -> None:
    """Every schedule of the operators, as the profile lays them out, by brute force."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.GELU(), tail())
    flow, lives = lay_out(ProfileIndex(autockpt.profile(model, torch.randn(64, 4))))
    top_bytes = max(lives.base_bytes) + sum(item.bytes for item in flow.items)
    above = []
    for budget_bytes in range(min(lives.base_bytes), top_bytes, top_bytes // 40):
        optimum = cheapest_schedule(flow, lives, budget_bytes)
        bound = least_seconds(flow, lives, budget_bytes, seconds=60.0)
        assert (math.inf if bound is None else bound) <= optimum * (1 + 1e-9)
        above.append(0 < optimum < math.inf and bound)
    assert any(above)
