"""Replays that may run before their backward begins: the judge finds the peak no higher, and higher for all others."""

from __future__ import annotations

import dataclasses

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt import Plan, Profile
from autockpt.solvers import simulate
from tests.doors import Candidates, PlannedReplay, find_candidates, find_early, find_planned, segments_of

from ..handmade import chain_profile
from .test_timeline import choices

PROFILES = [chain_profile(n_blocks) for n_blocks in range(1, 6)]
FOUND = [find_candidates(profile) for profile in PROFILES]


def early(replay: PlannedReplay, begins: int) -> PlannedReplay:
    """The same replay, where its backward begins at a tick."""
    moved = []
    for size, start, until in replay.additions:
        if start == replay.tick:
            moved.append((size, begins - 1, begins + 1))
        else:
            moved.append((size, begins + 1 if start == replay.tick + 1 else start, until))
    return dataclasses.replace(replay, additions=tuple(moved))


def by_the_judge(profile: Profile, planned: Candidates, plan: Plan) -> set[int]:
    """The segments that may, each tried by itself."""
    every, found = [*planned.replays], set()
    most_bytes = simulate(planned.problem, range(len(every))).peak_bytes
    begins = (profile.forward_ticks, *profile.backward_ticks)
    for number, begin in enumerate(begins):
        own = [each for each in every if planned.index.passes.at(each.tick) == number]
        for replay in sorted(own, key=lambda each: each.tick)[:1]:
            others = [early(each, begin) if each is replay else each for each in every]
            if simulate(planned.like(others).problem, range(len(every))).peak_bytes <= most_bytes:
                found.add([segment.calls for segment in plan.segments].index(replay.segment.calls))
    return found


@settings(max_examples=30)
@given(st.data())
def test_it_is_the_first_replay_of_a_backward_where_the_peak_stays(data: st.DataObject) -> None:
    which = data.draw(st.sampled_from(range(len(PROFILES))))
    profile, found = PROFILES[which], FOUND[which]
    plan = Plan(segments=segments_of(found, data.draw(choices(found))))
    ticks = st.integers(profile.forward_ticks + 1, profile.ticks - 1)
    profile = msgspec.structs.replace(profile, backward_ticks=tuple(sorted(data.draw(st.sets(ticks, max_size=2)))))
    planned = find_planned(profile, plan)
    keeps = any(planned.index.passes.keeping)
    assert find_early(profile, plan) == (set() if keeps else by_the_judge(profile, planned, plan))
