"""Replays in parts as candidates: priced to the byte, offered where one level is not enough, never a worse plan."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autockpt
from autockpt import Infeasible, Plan, Profile, Segment
from autockpt.solvers import Candidate, least_peak, simulate
from autockpt.solvers.deadline import NEVER
from tests.doors import (
    Goal,
    ProfileIndex,
    below,
    brief_plan,
    cut_runs,
    fewest_runs,
    find_candidates,
    find_planned,
    phrase,
    replays_in_parts,
    revolve,
)
from tests.toys.told import Told, with_linear

Cuts = tuple[int, ...]

LENGTHS = st.integers(1, 80)
SLOTS = st.integers(1, 12)


@functools.cache
def fewest(length: int, slots: int) -> float:
    """By the recursion of Griewank and Walther 2000, section 2, each replayed call counted too."""
    if length == 1:
        return 1
    if not slots:
        return math.inf
    return min(first + fewest(first, slots) + fewest(length - first, slots - 1) for first in range(1, length))


def outermost(cuts: Cuts) -> list[int]:
    level = min(level for level in cuts if level)
    return [0, *(place for place, each in enumerate(cuts) if each == level)]


def parts(cuts: Cuts) -> list[Cuts]:
    begins = outermost(cuts)
    return [(0, *cuts[first + 1 : stop]) for first, stop in zip(begins, [*begins[1:], len(cuts)], strict=True)]


def runs(cuts: Cuts) -> int:
    """How many calls run in all descents and replays."""
    return len(cuts) if not any(cuts) else outermost(cuts)[-1] + sum(map(runs, parts(cuts)))


def at_once(cuts: Cuts) -> int:
    """How many boundaries besides the first stand at once."""
    return max((place + at_once(part) for place, part in enumerate(parts(cuts))), default=0) if any(cuts) else 0


def longest(cuts: Cuts) -> int:
    """How many calls are replayed at once."""
    return max(map(longest, parts(cuts))) if any(cuts) else len(cuts)


@given(length=LENGTHS, slots=SLOTS)
@settings(max_examples=300, deadline=None, database=None, derandomize=True)
def test_revolve_runs_the_fewest_calls(length: int, slots: int) -> None:
    cuts = revolve(length, slots)
    assert len(cuts) == length and longest(cuts) == 1 and at_once(cuts) <= slots
    assert runs(cuts) == fewest_runs(length, slots) == fewest(length, slots)


@given(length=st.integers(0, 300))
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
def test_what_is_offered_are_runs_of_the_row_each_once(length: int) -> None:
    found = list(cut_runs(length))
    assert len(found) == len(set(found)) and bool(found) == (length >= 3)
    for first, stop, cuts in found:
        assert 0 <= first < stop <= length and len(cuts) == stop - first
        Plan(segments=(Segment(calls=tuple(f"{i}#0" for i in range(first, stop)), cuts=cuts),))


class Stage(nn.Module):
    """Saves more than it returns; with random numbers, and running statistics that it changes."""

    def __init__(self, width: int, *, normed: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.BatchNorm1d(4 * width) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = nn.functional.dropout(nn.functional.gelu(self.norm(self.up(x))), 0.1)
        out: Tensor = x + self.down(inner)
        return out


def chain(depth: int = 9, width: int = 16, *, normed: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Stage(width, normed=normed) for _ in range(depth)))


def glued(own: Told, x: Tensor) -> Tensor:
    """The caller's own code computes between the stages, and one tensor goes to several of them."""
    shift = x.sin()
    for number, stage in enumerate(own.stages):
        x = torch.tanh(stage(x)) + shift if number % 2 else stage(x)
    return x


def recorded(model: nn.Module, rows: int = 256, width: int = 16) -> tuple[Profile, Tensor]:
    torch.manual_seed(1)
    batch = torch.randn(rows, width)
    return autockpt.profile(model, batch), batch


@pytest.mark.parametrize(
    "cuts", [(0, 0, 0, 0, 1, 0, 0, 0, 0), (0, 3, 2, 0, 1, 3, 2, 1, 0), revolve(9, 2), revolve(9, 1)]
)
@pytest.mark.parametrize("normed", [False, True], ids=["", "statistics"])
def test_the_peak_is_the_predicted_one(cuts: Cuts, normed: bool) -> None:
    model = chain(normed=normed)
    profile, batch = recorded(model)
    plan = Plan(segments=(Segment(calls=tuple(f"{i}#0" for i in range(9)), cuts=cuts),))
    planned = find_planned(profile, plan)
    predicted_bytes = simulate(planned.problem, range(len(planned.replays))).peak_bytes
    found = autockpt.verify(model, batch, plan=plan)
    assert found.verdict == "exact" and found.measured_peak_bytes is not None
    assert 0 <= predicted_bytes - found.measured_peak_bytes < 1e-3 * predicted_bytes  # as of runs at one level


@pytest.mark.parametrize("normed", [False, True], ids=["", "statistics"])
def test_min_is_the_lowest_at_one_level_and_lowest_goes_below_it(normed: bool) -> None:
    """Nobody who asked for the minimum expected a step to take as long as three or four plain ones."""
    model = chain(normed=normed)
    profile, batch = recorded(model)
    one_level, plan = autockpt.solve(profile, "min"), autockpt.solve(profile, "lowest")
    assert one_level.peak_bytes == least_peak(find_candidates(profile).problem).peak_bytes > plan.peak_bytes
    assert one_level.recompute_seconds < plan.recompute_seconds
    assert not any(segment.cuts or segment.inner for segment in one_level.segments)
    assert any(segment.cuts for segment in plan.segments)
    assert autockpt.frontier(profile, points=2, seconds=60).minimum_bytes == one_level.peak_bytes
    assert "the lowest at one level" in brief_plan(one_level).text()
    found = autockpt.verify(model, batch, plan=plan)
    assert found.verdict == "exact" and found.measured_peak_bytes == plan.peak_bytes


def test_a_candidate_is_what_a_plan_of_its_segment_alone_says() -> None:
    for model in (chain(), Told(glued, stages=chain(6))):
        profile, _ = recorded(model)
        for replay in replays_in_parts(ProfileIndex(profile), NEVER):
            again = find_planned(profile, Plan(segments=(replay.segment,)))
            assert again.replays == (replay,)


def test_a_budget_that_one_level_does_not_reach() -> None:
    model = chain()
    profile, batch = recorded(model)
    one, lowest = least_peak(find_candidates(profile).problem).peak_bytes, autockpt.solve(profile, "lowest").peak_bytes
    plan = autockpt.solve(profile, (one + lowest) // 2)
    assert plan.peak_bytes <= (one + lowest) // 2 and any(segment.cuts for segment in plan.segments)
    assert autockpt.verify(model, batch, plan=plan).verdict == "exact"


@pytest.mark.parametrize("budget", ["just below", "absurd"])
def test_an_error_says_how_low_parts_get(budget: str) -> None:
    """Of a budget below what no decision changes it said how low one level gets, and a larger batch was no fit."""
    profile, _ = recorded(chain())
    lowest = autockpt.solve(profile, "lowest").peak_bytes
    with pytest.raises(Infeasible) as raised:
        autockpt.solve(profile, {"just below": lowest - 1, "absurd": 1}[budget])
    assert raised.value.minimum_bytes == lowest and raised.value.plan is not None
    assert any(segment.cuts for segment in raised.value.plan.segments)


def test_a_budget_below_all_that_stands_is_told_the_lowest_peak_of_all() -> None:
    profile, _ = recorded(chain())
    with pytest.raises(Infeasible) as raised:
        autockpt.solve(profile, 1000)
    assert raised.value.minimum_bytes == autockpt.solve(profile, "lowest").peak_bytes


def test_nothing_is_looked_at_in_parts_where_one_level_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was")

    monkeypatch.setattr(below, "replays_in_parts", never)
    profile, _ = recorded(chain())
    plan = autockpt.solve(profile, int(0.7 * profile.plain_peak_bytes))
    assert plan.segments and not any(segment.cuts for segment in plan.segments)
    autockpt.solve(profile, max_overhead=0.2)
    autockpt.solve(profile, "min")
    autockpt.solve(profile, "lowest", solver="sqrt")


def test_a_plan_file_from_before_lowest_says_how_low_it_is(tmp_path: Path) -> None:
    """Then "min" went below one level: such files load, and are not said to stay at one."""
    profile, _ = recorded(chain())
    before = msgspec.structs.replace(autockpt.solve(profile, "lowest"), goal=Goal(budget="min"))
    before.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == before
    assert "the lowest that can be reached" in brief_plan(before).text()


def test_pins_bind_replays_in_parts() -> None:
    profile, _ = recorded(chain())
    for plan in (autockpt.solve(profile, "lowest", keep="4"), autockpt.solve(profile, "lowest", recompute="8")):
        calls = {call for segment in plan.segments for call in segment.calls}
        assert any(segment.cuts for segment in plan.segments)
        assert "8#0" in calls if plan.pinned_recompute else "4#0" not in calls


def test_a_step_that_keeps_its_graph_has_none() -> None:
    """All is replayed at once there, and priced so."""
    profile, _ = recorded(chain())
    index = ProfileIndex(profile)
    assert [*replays_in_parts(index, NEVER)]
    index.passes.keeping = [True]
    assert not [*replays_in_parts(index, NEVER)]


def test_a_step_whose_replays_run_collectives_has_none() -> None:
    profile, _ = recorded(chain())
    names = ("c10d.allreduce_.default", *profile.ops.name[1:])
    speaking = msgspec.structs.replace(profile, ops=msgspec.structs.replace(profile.ops, name=names))
    assert not [*replays_in_parts(ProfileIndex(speaking), NEVER)]


def test_a_part_begins_where_no_argument_is_changed_in_place_later() -> None:
    torch.manual_seed(0)
    overwrites = (with_linear(lambda own, x: own.linear(x.mul_(2)).sin(), 16) for _ in range(4))
    model = nn.Sequential(*(layer for each in overwrites for layer in (Stage(16), nn.Linear(16, 16), each)))
    profile, batch = recorded(model)
    found = [*replays_in_parts(ProfileIndex(profile), NEVER)]
    assert found
    for replay in found:
        begins = [call for call, cut in zip(replay.segment.calls, replay.segment.cuts, strict=True) if cut]
        assert not {f"{number}#0" for number in (2, 5, 8, 11)}.intersection(begins)
    plan = autockpt.solve(profile, "lowest")
    assert autockpt.verify(model, batch, plan=plan).verdict == "exact"


def test_what_it_costs_is_what_its_parts_and_descents_cost() -> None:
    profile, _ = recorded(chain())
    index = ProfileIndex(profile)
    one = [replay for replay in find_candidates(profile).replays if len(replay.members) == 1]
    seconds = {replay.segment.calls[0]: replay.segment.recompute_seconds for replay in one}
    for replay in replays_in_parts(index, NEVER):
        descended = sum(runs(replay.segment.cuts) * index.seconds[member] for member in replay.members)
        descended = descended / len(replay.members) - sum(index.seconds[member] for member in replay.members)
        assert replay.segment.recompute_seconds >= descended + sum(seconds[call] for call in replay.segment.calls)


def test_baselines_take_no_replay_in_parts() -> None:
    profile, _ = recorded(chain())
    found = find_candidates(profile)
    wide = [*found.replays, *replays_in_parts(found.index, NEVER)]
    stated: tuple[Candidate, ...] = type(found).of(found.index, wide).problem.candidates
    assert [each.partial for each in stated[len(found.replays) :]] == [True] * (len(wide) - len(found.replays))


def test_pages_say_how_deep_a_plan_goes() -> None:
    profile, _ = recorded(chain())
    segment = Segment(calls=tuple(f"{i}#0" for i in range(9)), cuts=(0, 3, 2, 0, 1, 3, 2, 1, 0))
    said = Plan(segments=(segment,)).explain(profile)
    assert "levels" in said and "recomputing goes on inside recomputing" in said
    assert phrase(Plan(segments=(segment,))) == "9 blocks whole, 1 run of calls in parts, up to 4 levels deep"
    assert "levels" not in Plan.of([list(segment.calls)]).explain(profile)
