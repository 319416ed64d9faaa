"""Plans that no solver would choose: the judge must be right about them too, and they must be as exact."""

from __future__ import annotations

import random

import pytest

import autockpt
from autockpt import Plan, Segment
from autockpt._candidates import Candidates, find_candidates
from autockpt.solvers import simulate
from tests.end_to_end.reference import counting_replays, reference
from tests.zoo import ZOO

PREDICTION_TOLERANCE = 0.005

PLANS = 4


def drawn(candidates: Candidates, draw: random.Random) -> list[int]:
    """Take candidates in random order, small and large alike, as long as they do not overlap."""
    problem = candidates.problem
    taken: list[int] = []
    free = [True] * len(problem.calls)
    wanted = draw.choice([1, 3, 10, 1000])
    for index in draw.sample(range(len(problem.candidates)), len(problem.candidates)):
        candidate = problem.candidates[index]
        if len(taken) < wanted and all(free[candidate.start : candidate.stop]):
            free[candidate.start : candidate.stop] = [False] * (candidate.stop - candidate.start)
            taken.append(index)
    return sorted(taken)


@pytest.mark.parametrize("name", ZOO)
def test_the_judge_is_right_about_drawn_plans(name: str) -> None:
    plain = reference(name)
    calls, candidates = plain.profile.calls, find_candidates(plain.profile)
    draw = random.Random(name)
    for _ in range(PLANS):
        chosen = drawn(candidates, draw)
        runs = [candidates.runs[index] for index in chosen]
        segments = tuple(
            Segment(
                calls=tuple(calls[member].key for member in run.members),
                parent=calls[calls[run.members[0]].parent].key,
                buffers=run.buffers,
            )
            for run in runs
        )
        predicted = simulate(candidates.problem, chosen).peak_bytes
        autockpt.apply(plain.case.model, plan=Plan(segments=segments))
        try:
            with counting_replays() as replays:
                outcome = plain.outcome()
            measured = plain.measured_peak()
        finally:
            autockpt.remove(plain.case.model)
        assert plain.plain.differences(outcome) == []
        assert sorted(replays) == sorted(len(run.members) for run in runs)
        assert predicted == pytest.approx(measured, rel=PREDICTION_TOLERANCE)
