"""Copies beside the computing: how long a plan waits for them, and what fits into a while."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch
from torch import nn

import autockpt
from autockpt import Infeasible, Offload, PinError, Profile
from autockpt.solvers import simulate
from tests.doors import Ends, LinkClock, Move, Road, Trip, find_candidates


@functools.cache
def profile(blocks: int = 6) -> Profile:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(blocks))
    return autockpt.profile(nn.Sequential(*layers), torch.randn(512, 64), mode="fake", device="h100")


def call(name: str) -> int:
    return [each.name for each in profile().calls].index(name)


def trip(name: str, n_bytes: int) -> Trip:
    """What a block saves, as one storage."""
    inside = range(call(name), profile().calls[call(name)].stop)
    saves = profile().saves
    own = [i for i, saver in enumerate(saves.call) if saver in inside]
    return Trip(
        tensor=0,
        bytes=n_bytes,
        packed=min(saves.pack[i] for i in own),
        read=min(saves.unpack[i] for i in own),
        release=max(saves.release[i] for i in own),
    )


def road(seconds_a_byte: float) -> Road:
    each = 1 / seconds_a_byte
    return Road(profile(), Offload(where="host", write_rate=each, read_rate=each))


def test_backward_is_later_than_forward_and_ends_with_the_step() -> None:
    clock, step = LinkClock(profile()), profile()
    at = [clock.at(tick) for tick in range(step.ticks + 1)]
    assert at == sorted(at) and at[0] == 0.0
    assert at[-1] == pytest.approx(step.plain_seconds)
    assert clock.at(step.calls[0].exit) == pytest.approx(step.calls[0].exit_seconds)


def test_a_call_may_wait_for_itself_in_what_is_around_it_and_for_later_siblings_of_both() -> None:
    ends, calls = Ends(profile()), profile().calls
    names = [calls[each].name for each in ends.of(call("2"))]
    assert names == ["3", "4", "5"]
    inner = [calls[each].name for each in ends.of(call("2.0"))]
    assert inner[-4:] == ["2", "3", "4", "5"]
    gone = [ends.gone[each] for each in ends.of(call("2.0"))]
    assert gone == sorted(gone)


def test_the_way_back_begins_before_anything_of_the_call_is_read_and_after_what_comes_before() -> None:
    ends, saves, calls = Ends(profile()), profile().saves, profile().calls
    for name in ("1", "2", "3", "4"):
        number, later = call(name), call(str(int(name) + 1))
        own = [u for s, u in zip(saves.call, saves.unpack, strict=True) if number <= s < calls[number].stop]
        after = [u for s, u in zip(saves.call, saves.unpack, strict=True) if later <= s < calls[later].stop]
        assert max(after) <= ends.fetched[number] <= min(own)


def test_nobody_waits_for_a_fast_link_and_all_wait_for_a_slow_one() -> None:
    move = Move(trips=(trip("1", 1000),), until=call("3"))
    assert road(1e-15).waiting_seconds([move], ()) == 0.0
    slow, seconds = road(1.0), 2 * 1000.0
    assert slow.waiting_seconds([move], ()) == pytest.approx(seconds, rel=1e-3)
    assert slow.waiting_seconds([Move(trips=move.trips)], ()) == pytest.approx(seconds)


def test_a_copy_waits_for_those_before_it_each_way() -> None:
    clock, calls = LinkClock(profile()), profile().calls
    window = clock.at(calls[call("3")].exit) - clock.at(trip("2", 1).packed)
    n_bytes = 10_000
    link = road(0.6 * window / n_bytes)  # one is in time, two are not
    one, other = (Move(trips=(trip(name, n_bytes),), until=call("3")) for name in ("2", "2"))
    assert link.waiting_seconds([one], ()) == 0.0
    assert link.has_time(one)
    assert link.waiting_seconds([one, other], ()) >= 0.2 * window * 0.99


def test_what_is_read_first_comes_back_first() -> None:
    """Both ways back begin at once, and there is time for one copy before each is read, and for no second one."""
    clock, until = LinkClock(profile()), call("3")
    early, late = trip("1", 1), trip("2", 1)
    back = clock.at(Ends(profile()).fetched[until])
    seconds = 0.9 * min(clock.at(late.read) - back, (clock.at(early.read) - back) / 2)
    assert 2 * seconds > clock.at(late.read) - back
    link = Road(profile(), Offload(where="host", write_rate=1e30, read_rate=1 / seconds))
    assert link.waiting_seconds([Move(trips=(early, late), until=until)], ()) == 0.0


def test_what_runs_again_meanwhile_is_time_for_copies() -> None:
    move = Move(trips=(trip("1", 1000),), until=call("5"))
    link = road(profile().plain_seconds / 1000)
    alone = link.waiting_seconds([move], ())
    tick = (Ends(profile()).fetched[call("5")] + move.trips[0].read) // 2
    assert link.waiting_seconds([move], [(tick, 0.1 * alone)]) == pytest.approx(0.9 * alone)


def test_a_window_holds_the_moves_that_begin_and_end_in_it_and_takes_its_seconds_by_the_rate() -> None:
    link = road(1e-9)
    moves = [Move(trips=(trip("1", 100),), until=call("2")), None, Move(trips=(trip("3", 10),), until=call("4"))]
    windows = link.windows(moves)
    held = [window.bytes for window in windows]
    assert {0: 100} in held and {2: 10} in held and {0: 100, 2: 10} in held
    assert all(window.most_bytes >= 0 for window in windows)
    whole = max(window.most_bytes for window in windows if window.bytes == {0: 100, 2: 10})
    assert whole <= profile().plain_seconds * 1e9


LONG = 60.0
"""Seconds of a search that ends long before that."""


def half() -> int:
    static = profile().static.total_bytes
    return static + (profile().plain_peak_bytes - static) // 2


@pytest.mark.parametrize(("rate", "moves"), [("1MB/s", False), ("10000GB/s", True)])
def test_a_plan_is_never_above_the_one_that_moves_nothing(rate: str, moves: bool) -> None:
    alone = autockpt.solve(profile(), half(), seconds=LONG)
    found = autockpt.solve(profile(), half(), seconds=LONG, offload=f"host@{rate}")
    assert found.peak_bytes <= half() and found.recompute_seconds <= alone.recompute_seconds * (1 + 1e-9)
    assert any(segment.until is not None for segment in found.segments) == moves
    assert not moves or found.recompute_seconds < 0.5 * alone.recompute_seconds


def test_a_plan_counts_what_it_waits_for_and_judges_itself_alike() -> None:
    plan = autockpt.solve(profile(), half(), seconds=LONG, offload="host@10000GB/s")
    assert plan.timeline(profile()).peak_bytes == plan.peak_bytes
    assert plan.recompute_seconds >= sum(segment.recompute_seconds for segment in plan.segments) * (1 - 1e-9)


def test_a_budget_that_nothing_meets_names_no_pins_where_there_are_none() -> None:
    with pytest.raises(Infeasible) as caught:
        autockpt.solve(profile(), profile().static.total_bytes + 1, seconds=LONG, offload="host@10000GB/s")
    assert caught.value.unpinned_minimum_bytes is None and "without" not in str(caught.value)


@pytest.mark.parametrize("share", [0.4, 0.5, 0.7])
def test_the_peak_of_a_plan_is_that_of_its_moves_by_themselves(share: float) -> None:
    """It was above the budget: a hold that ended within a step of the problem lasted to the end of time."""
    static = profile().static.total_bytes
    budget = static + int(share * (profile().plain_peak_bytes - static))
    candidates = find_candidates(profile(), offload=Offload.of("host@10000GB/s"))
    moves = [i for i, each in enumerate(candidates.replays) if each.segment.until is not None]
    for move in moves:
        alone = candidates.like([candidates.replays[move]])
        assert simulate(alone.problem, (0,)).peak_bytes == simulate(candidates.problem, (move,)).peak_bytes
    plan = autockpt.solve(profile(), budget, seconds=LONG, offload="host@10000GB/s")
    assert plan.peak_bytes <= budget


def test_the_lowest_peak_is_as_low_with_copies_beside_the_computing() -> None:
    lowest = autockpt.solve(profile(), "lowest", seconds=LONG)
    moved = autockpt.solve(profile(), "lowest", seconds=LONG, offload="host@1000GB/s")
    assert moved.peak_bytes <= lowest.peak_bytes
    assert moved.recompute_seconds < lowest.recompute_seconds  # what goes in parts takes longer


@pytest.mark.parametrize("solver", ["uniform", "block", "none"])
def test_solvers_that_know_no_search_have_plans_too(solver: str) -> None:
    plan = autockpt.solve(profile(), profile().plain_peak_bytes, solver=solver, offload="host")
    assert plan.peak_bytes <= profile().plain_peak_bytes


def test_pins_bind_moves_beside_the_computing() -> None:
    again = autockpt.solve(profile(), half(), seconds=LONG, offload="host@10000GB/s", recompute="2")
    assert any("2#0" in segment.calls and segment.offload != "saved" for segment in again.segments)


def test_a_frontier_with_moves_is_nowhere_above_the_one_without() -> None:
    step = profile()
    alone = autockpt.frontier(step, points=4, seconds=LONG)
    moving = autockpt.frontier(step, points=4, seconds=4 * LONG, offload="host@10000GB/s")
    assert any(segment.until is not None for plan in moving.plans for segment in plan.segments)
    for plan in alone.plans:
        within = [each for each in moving.plans if each.peak_bytes <= plan.peak_bytes]
        assert within and min(each.recompute_seconds for each in within) <= plan.recompute_seconds * (1 + 1e-6)


@pytest.mark.parametrize("budget", [None, "1GB"], ids=["plain peak", "more than all there is"])
@pytest.mark.parametrize("kind", ["saved", "boundary"])
def test_calls_that_must_move_do_and_no_other_has_to(kind: Literal["saved", "boundary"], budget: str | None) -> None:
    where = Offload.of("host@1MB/s", **{kind: ["2", "4"]})
    plan = autockpt.solve(profile(), budget or profile().plain_peak_bytes, seconds=LONG, offload=where)
    assert [(segment.calls, segment.offload) for segment in plan.segments] == [(("2#0",), kind), (("4#0",), kind)]
    assert plan.offload == where


@pytest.mark.parametrize("kind", ["saved", "boundary"])
def test_of_calls_inside_one_another_a_pin_of_moves_means_the_outermost(kind: Literal["saved", "boundary"]) -> None:
    plan = autockpt.solve(profile(), "1GB", seconds=LONG, offload=Offload.of("host@1MB/s", **{kind: "[24]*"}))
    assert [(segment.calls, segment.offload) for segment in plan.segments] == [(("2#0",), kind), (("4#0",), kind)]


def test_pins_of_moves_go_with_others() -> None:
    where = Offload.of("host@10000GB/s", boundary="2")
    plan = autockpt.solve(profile(), half(), seconds=LONG, offload=where, recompute="4", keep="1")
    found = {segment.calls[0]: segment.offload for segment in plan.segments}
    assert found["2#0"] == "boundary" and not any(call.startswith("1") and how is None for call, how in found.items())


@pytest.mark.parametrize(
    ("given", "pins", "said"),
    [
        ({"boundary": "blocks.2"}, {}, "no call of the step matches 'blocks.2'"),
        ({"saved": "2"}, {"recompute": "2"}, "cannot"),
        ({"boundary": "2"}, {"keep": "2"}, "cannot be moved"),
        ({"boundary": "[23]", "saved": "2"}, {}, "only one of both"),
    ],
)
def test_pins_of_moves_that_cannot_be_honoured(given: dict[str, str], pins: dict[str, str], said: str) -> None:
    with pytest.raises(PinError, match=said):
        autockpt.solve(profile(), half(), offload=Offload.of("host", **given), **pins)  # type: ignore[arg-type]


def test_a_pin_of_moves_is_text_and_frontiers_have_none() -> None:
    with pytest.raises(PinError, match="pattern"):
        Offload.of("host", saved=[3])  # type: ignore[list-item]
    with pytest.raises(PinError, match="no pins"):
        autockpt.frontier(profile(), offload=Offload.of("host", saved="2"))


def test_rates_that_were_measured_where_a_step_was_recorded_are_those_of_its_plans(tmp_path: Path) -> None:
    known = Offload(where="host", write_rate=1e13, read_rate=1e13, measured=True)
    step = msgspec.structs.replace(profile(), offload=known)
    step.save(tmp_path / "profile.json")
    step = Profile.load(tmp_path / "profile.json")
    assert autockpt.solve(step, half(), seconds=LONG, offload="host").offload == known
    given = autockpt.solve(step, half(), seconds=LONG, offload="host@9000GB/s").offload
    assert given is not None and given.write_rate == 9e12
    pinned = autockpt.solve(step, half(), seconds=LONG, offload=Offload.of("host", saved="2")).offload
    assert pinned == msgspec.structs.replace(known, saved=("2",))
    assert autockpt.solve(step, half(), offload="/tmp") is not None
