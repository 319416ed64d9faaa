"""Replays inside calls as candidates: priced to the byte, offered where one level is not enough, never a worse plan."""

from __future__ import annotations

import functools
import random

import msgspec
import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Infeasible, NotApplicable, Plan, Profile, Segment
from autockpt.solvers import least_peak, simulate
from autockpt.solvers.deadline import NEVER
from tests.choose.test_parts import recorded
from tests.doors import ProfileIndex, find_candidates, find_planned, phrase, replays_in_parts
from tests.frames.test_inside import drawn, segment
from tests.toys.told import Told


def branch(width: int, *, normed: bool) -> nn.Module:
    """Saves more than it returns; with random numbers, or running statistics that it changes."""
    return Told(
        lambda own, x: own.down(own.act_(own.norm(own.up(x)))),
        up=nn.Linear(width, 4 * width),
        norm=nn.BatchNorm1d(4 * width) if normed else nn.Dropout(0.1),
        act_=nn.GELU(),
        down=nn.Linear(4 * width, width),
    )


def block(width: int = 16, *, normed: bool = False) -> nn.Module:
    """Two branches, between which its own code computes."""

    def computes_between(own: Told, x: Tensor) -> Tensor:
        x = x + own.one(own.first(x))
        return torch.tanh(x + own.two(own.second(x)))

    one, two = (branch(width, normed=normed) for _ in range(2))
    return Told(computes_between, first=nn.LayerNorm(width), one=one, second=nn.LayerNorm(width), two=two)


def deep(depth: int = 8, *, normed: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(block(normed=normed) for _ in range(depth)))


def insides(number: int) -> tuple[Segment, ...]:
    """Two in a block, one of them with a call inside."""
    name = str(number)
    up = segment(f"{name}.one.up", f"{name}.one.norm")
    return segment(f"{name}.first", f"{name}.one", inner=(up,)), segment(f"{name}.two.up", f"{name}.two.norm")


WHOLE = tuple(str(number) for number in range(8))

PLANS = {
    "one call": Plan(segments=(segment("3", inner=insides(3)),)),
    "each call": Plan(segments=tuple(segment(name, inner=insides(int(name))) for name in WHOLE)),
    "a run": Plan(segments=(segment("2", "3", "4", inner=(*insides(2), *insides(3))),)),
    "in parts": Plan(
        segments=(segment(*WHOLE, cuts=(0, 2, 1, 2, 1, 1, 2, 1), inner=tuple(s for i in range(8) for s in insides(i))),)
    ),
    "in parts inside": Plan(
        segments=(segment("0"), segment("3", inner=(segment("3.first", "3.one", "3.second", cuts=(0, 2, 1)),)))
    ),
}


@pytest.mark.parametrize("normed", [False, True], ids=["", "statistics"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_peak_is_the_predicted_one(plan: Plan, normed: bool) -> None:
    model = deep(normed=normed)
    profile, batch = recorded(model, rows=1024)
    planned = find_planned(profile, plan)
    predicted_bytes = simulate(planned.problem, range(len(planned.replays))).peak_bytes
    found = autockpt.verify(model, batch, plan=plan)
    assert found.verdict == "exact" and found.measured_peak_bytes is not None
    assert 0 <= predicted_bytes - found.measured_peak_bytes < 1e-3 * predicted_bytes


@functools.cache
def known(*, normed: bool = False) -> tuple[Profile, Tensor]:
    return recorded(deep(normed=normed), rows=1024)


@pytest.mark.parametrize("normed", [False, True], ids=["", "statistics"])
def test_min_is_lower_inside_calls(normed: bool) -> None:
    profile, batch = known(normed=normed)
    candidates = find_candidates(profile)
    static_bytes, one = profile.static.total_bytes, least_peak(candidates.problem).peak_bytes
    cut = [each for each in replays_in_parts(candidates.index, NEVER) if not each.segment.inner]
    in_parts = least_peak(candidates.like([*candidates.replays, *cut]).problem).peak_bytes
    plan = autockpt.solve(profile, "lowest")
    assert plan.peak_bytes - static_bytes < 0.8 * (min(one, in_parts) - static_bytes)
    assert any(each.inner for each in plan.segments)
    found = autockpt.verify(deep(normed=normed), batch, plan=plan)
    assert found.verdict == "exact" and found.measured_peak_bytes is not None
    assert 0 <= plan.peak_bytes - found.measured_peak_bytes < 1e-3 * plan.peak_bytes


def test_a_candidate_is_what_a_plan_of_its_segment_alone_says() -> None:
    profile, _ = known(normed=True)
    found = [each for each in replays_in_parts(ProfileIndex(profile), NEVER) if each.segment.inner]
    assert found
    for replay in found[:: len(found) // 20]:
        assert find_planned(profile, Plan(segments=(replay.segment,))).replays == (replay,)


def test_a_budget_that_parts_do_not_reach() -> None:
    profile, batch = known()
    plan = autockpt.solve(profile, autockpt.solve(profile, "lowest").peak_bytes * 21 // 20)
    assert any(each.inner for each in plan.segments)
    assert autockpt.verify(deep(), batch, plan=plan).verdict == "exact"
    with pytest.raises(Infeasible):
        autockpt.solve(profile, plan.peak_bytes // 2)


def test_what_it_costs_is_what_it_runs_again() -> None:
    """The block once more, and what is inside it once more than that."""
    profile, _ = known()
    index = ProfileIndex(profile)
    plan = PLANS["one call"]
    (replay,) = find_planned(profile, plan).replays
    (whole,) = find_planned(profile, Plan.of(["3"])).replays
    inside = find_planned(profile, Plan(segments=replay.segment.inner)).replays
    least = whole.segment.recompute_seconds + sum(each.segment.recompute_seconds for each in inside)
    assert least <= replay.segment.recompute_seconds <= least + 10 * index.host.member_seconds


@pytest.mark.parametrize("normed", [False, True], ids=["", "statistics"])
def test_whatever_is_inside_has_the_predicted_peak(normed: bool) -> None:
    """Also where backward comes to that first."""
    model = deep(5, normed=normed)
    profile, batch = recorded(model, rows=1024)
    for seed in range(8):
        dice = random.Random(seed)
        cuts = tuple(dice.randint(0, 2) if place else 0 for place in range(5))
        inner = tuple(each for number in range(5) for each in drawn(model, str(number), dice))
        plan = Plan(segments=(segment(*WHOLE[:5], cuts=cuts if any(cuts) else (), inner=inner),))
        planned = find_planned(profile, plan)
        predicted_bytes = simulate(planned.problem, range(len(planned.replays))).peak_bytes
        found = autockpt.verify(model, batch, plan=plan)
        assert found.verdict == "exact" and found.measured_peak_bytes is not None
        assert 0 <= predicted_bytes - found.measured_peak_bytes < 1e-3 * predicted_bytes


def test_a_profile_that_has_it_elsewhere_is_named() -> None:
    profile, _ = known()
    with pytest.raises(NotApplicable, match="is not inside the segment of"):
        find_planned(profile, Plan(segments=(segment("1", inner=(segment("2.one"),)),)))


@pytest.mark.parametrize("name", ["c10d.allreduce_.default", "_c10d_functional.all_gather_into_tensor.default"])
def test_calls_that_hold_collectives_have_nothing_inside(name: str) -> None:
    """Every level would run them again; the lowest plan is that of one level then."""
    profile, _ = known()
    index = ProfileIndex(profile)
    place = next(n for n, each in enumerate(profile.ops.call) if profile.calls[each].name == "3.one.up")
    names = [*profile.ops.name]
    names[place] = name
    ops = msgspec.structs.replace(profile.ops, name=tuple(names))
    speaking = msgspec.structs.replace(profile, ops=ops)
    assert any(each.segment.inner for each in replays_in_parts(index, NEVER))
    assert not [*replays_in_parts(ProfileIndex(speaking), NEVER)]
    lowest = autockpt.solve(speaking, "lowest")
    assert lowest.segments and not any(each.inner or each.cuts for each in lowest.segments)
    assert lowest.peak_bytes == least_peak(find_candidates(profile).problem).peak_bytes


def test_baselines_take_none() -> None:
    profile, _ = known()
    found = find_candidates(profile)
    inside = [each for each in replays_in_parts(found.index, NEVER) if each.segment.inner]
    assert all(each.partial for each in type(found).of(found.index, inside).problem.candidates)


def test_pages_say_what_is_recomputed_again() -> None:
    profile, _ = known()
    said = PLANS["in parts"].explain(profile)
    assert "levels" in said and "Recomputed again inside 0 … 7: first … one, two.up … norm" in said
    assert phrase(PLANS["in parts"]).endswith("again inside 8 calls, up to 5 levels deep")
    assert phrase(PLANS["one call"]) == "1 block whole, again inside 1 call, up to 3 levels deep"
    assert "again" not in Plan.of(["3"]).explain(profile)
    document = PLANS["one call"]._page(profile).document["segments"]
    assert [(row.inner, row.levels) for row in document] == [(("first … one", "two.up … norm"), 3)]
