"""Candidates for a solver that repeats no product."""

from __future__ import annotations

import pytest

from autockpt import Profile
from autockpt.solvers.judge import Judge
from autockpt.solvers.plans.baselines import speed
from tests.doors import find_candidates


@pytest.mark.parametrize("name", ["llama-1b", "bert-large"])
def test_whole_runs_are_those_of_others_and_parts_multiply_nothing(name: str) -> None:
    profile = Profile.load(name)
    others, own = (find_candidates(profile, solver=solver).replays for solver in ("auto", "speed"))
    assert {each.members for each in own if not each.alone} == {each.members for each in others if not each.alone}
    parts = [each for each in own if each.alone]
    assert parts and not any(each.multiplies for each in parts)
    for part in parts:  # who costs less frees less
        rivals = [each.segment for each in parts if each.members == part.members]
        assert not any(
            rival.freed_bytes > part.segment.freed_bytes and rival.recompute_seconds < part.segment.recompute_seconds
            for rival in rivals
        )


def test_resnets_convolutions_are_kept_and_what_lies_between_them_runs_again() -> None:
    """To convolve again is cheaper for each byte there, so no menu had it, and `speed` saved 4 % of the peak."""
    candidates = find_candidates(Profile.load("resnet-50"), solver="speed")
    judge = Judge(candidates.problem)
    *_, most = speed(judge)
    assert judge.peak(most) < 0.7 * judge.peak(())
    kept = [name for c in most for name in candidates.replays[c].segment.keep]
    assert kept and all("conv" in name or "pooler" in name for name in kept)
