"""Planning keeps its deadline, whatever the model: candidates become coarser, and a plan comes. No clock but ours."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable

import msgspec
import pytest
import torch

import autockpt
from autockpt import Infeasible, Plan, Profile
from autockpt.solvers.deadline import Deadline
from tests.choose.test_boundaries import power
from tests.counted import counted_time
from tests.doors import Asked, Goal, ProfileIndex, candidate_runs, find_candidates, runs_of, solving
from tests.handmade import chain_profile
from tests.zoo import build

SECONDS = 3.0


def frozen() -> float:
    return 0.0


def ticking(step: float) -> Callable[[], float]:
    """A clock that goes on by a step whenever it is looked at."""
    looks = itertools.count()
    return lambda: next(looks) * step


@functools.lru_cache
def loop(n: int) -> Profile:
    """The recorded step of a long loop of operators in one forward."""
    return autockpt.profile(power(n), torch.randn(8, 8), mode="fake")


@functools.lru_cache
def model(name: str) -> Profile:
    case = build(name, short=True)
    return autockpt.profile(case.model, case.kwargs, mode="fake")


PROFILES: dict[str, Callable[[], Profile]] = {
    "chain": chain_profile,
    "loop": lambda: loop(40),
    "gpt2": lambda: model("gpt2"),
    "resnet50": lambda: model("resnet50"),
}
each_profile = pytest.mark.parametrize("name", PROFILES)


def budget_of(profile: Profile, share: float = 0.7) -> int:
    static_bytes = profile.static.total_bytes
    return static_bytes + int(share * (profile.plain_peak_bytes - static_bytes))


def chosen(profile: Profile, clock: Callable[[], float], solver: str = "chain", seconds: float = SECONDS) -> Plan:
    asked = Asked(goal=Goal.of(budget_of(profile)), solver=solver, seconds=seconds)
    return solving.choose(profile, asked, clock=clock, bounded=False)


def late(plan: Plan) -> list[str]:
    return [note for note in plan.notes if note.startswith("time for candidates was up")]


@each_profile
def test_a_deadline_that_is_not_hit_changes_nothing(name: str) -> None:
    profile = PROFILES[name]()
    still, slow = chosen(profile, frozen), chosen(profile, ticking(1e-9))
    assert still == slow == autockpt_solved(profile)
    assert late(still) == []


def autockpt_solved(profile: Profile) -> Plan:
    plan = autockpt.solve(profile, budget_of(profile), solver="chain", seconds=3600.0)
    return msgspec.structs.replace(plan, lower_bound_seconds=None if plan.segments else 0.0)


@each_profile
@pytest.mark.parametrize("solver", ["auto", "chain", "sqrt"])
def test_time_that_is_up_at_once_leaves_a_valid_plan(name: str, solver: str) -> None:
    profile = PROFILES[name]()
    budget_bytes = budget_of(profile)
    try:
        plan = chosen(profile, ticking(SECONDS), solver)
    except Infeasible as error:
        assert solver == "sqrt" and name == "loop"  # it knows no blocks there, and finds nothing in time either
        assert error.minimum_bytes > budget_bytes
        return
    assert plan.peak_bytes <= budget_bytes < plan.plain_peak_bytes
    assert plan.timeline(profile).peak_bytes == plan.peak_bytes
    assert plan.segments
    assert len(late(plan)) == 1 and "give more seconds" in late(plan)[0]


@each_profile
@pytest.mark.parametrize("looks", [10, 100, 300])
def test_wherever_time_is_up_candidates_are_some_of_all_in_their_order(name: str, looks: int) -> None:
    profile = PROFILES[name]()
    asked = Asked(goal=Goal.of(budget_of(profile)), solver="chain", seconds=SECONDS)
    every = [(each.members, each.alone) for each in find_candidates(profile).replays]
    share = solving.CANDIDATES_SHARE
    deadline = Deadline.after(asked.seconds * share, clock=ticking(asked.seconds * share / looks))
    found = find_candidates(profile, deadline=deadline)
    some = [(each.members, each.alone) for each in found.replays]
    assert set(some) <= set(every)
    assert some == [each for each in every if each in set(some)]
    assert bool(found.notes) == (len(some) < len(every))


@pytest.mark.parametrize("name", ["loop", "gpt2"])
def test_a_search_that_is_bounded_by_what_it_does_finds_the_same_twice(name: str) -> None:
    profile, found = PROFILES[name](), []
    for _ in range(2):
        with counted_time():
            found.append(autockpt.solve(profile, budget_of(profile), seconds=0.5))
    assert found[0] == found[1]
    assert not any("HiGHS" in note for note in found[0].notes)


def test_single_calls_and_runs_side_by_side_are_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_runs, "MAX_RUNS_PER_PARENT", 20)
    index = ProfileIndex(chain_profile(12))
    even = [run.members for run in runs_of(index) if run.even]
    found = find_candidates(chain_profile(12), deadline=Deadline.after(0.0, clock=frozen))
    assert {replay.members for replay in found.replays} == {
        members for members in even if members in {each.members for each in find_candidates(chain_profile(12)).replays}
    }
    for length in {len(members) for members in even}:
        covered = [member for members in even if len(members) == length for member in members]
        assert len(covered) == len(set(covered))


def test_candidates_of_a_loop_grow_with_its_length() -> None:
    """Each end of a run had runs of all lengths before it: members grew with the square of the loop's length."""
    members = {n: sum(len(each.members) for each in find_candidates(loop(n)).replays) for n in (100, 200, 400)}
    assert members[200] < 2.6 * members[100]
    assert members[400] < 2.2 * members[200]


@pytest.mark.parametrize("step", [0.0, 0.01, 0.5, 5.0])
def test_planning_says_how_far_it_is_from_two_seconds_on(step: float, caplog: pytest.LogCaptureFixture) -> None:
    """At most every two seconds."""
    clock, said = ticking(step), []

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record)

    logger, handler = logging.getLogger("autockpt"), Hearing()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger="autockpt"):
            chosen(loop(40), clock, seconds=1e9)
    finally:
        logger.removeHandler(handler)
    texts = [record.getMessage() for record in said]
    assert all(record.levelno == logging.INFO and record.getMessage().startswith("planning: ") for record in said)
    after = [float(text.rsplit(" after ", 1)[1].removesuffix(" s")) for text in texts]
    assert all(later - sooner >= 1.9 for sooner, later in itertools.pairwise([0.0, *after]))
    assert bool(texts) == (step > 0)
    assert step == 0.0 or any(" runs of calls looked at after " in text for text in texts)
