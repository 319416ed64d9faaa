"""Steps of a strange shape: very deep, very wide, with next to nothing in them, or without what a plan needs."""

from __future__ import annotations

import inspect
import math
import sys

import msgspec
import pytest
import torch
from torch import nn

import autockpt
from autockpt import InvalidFile, NotApplicable, Profile
from tests.doors import find_candidates
from tests.handmade import chain_profile
from tests.toys.chains import Nested


def test_150_modules_in_one_another_have_a_plan() -> None:
    profile = autockpt.profile(Nested(150, 16), torch.randn(16, 16))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        found = find_candidates(profile)
    finally:
        sys.setrecursionlimit(limit)
    assert len(found.replays) < 5000
    plan = autockpt.solve(profile, "lowest", solver="chain")
    assert plan.segments and plan.peak_bytes < plan.plain_peak_bytes


def test_5000_siblings_have_few_candidates_each() -> None:
    found = find_candidates(chain_profile(5000))
    assert 15_000 <= len(found.replays) < 21_000
    assert max(len(replay.members) for replay in found.replays) > 100


def test_a_step_of_one_call_has_nothing_to_choose() -> None:
    profile = autockpt.profile(nn.Linear(8, 8), torch.randn(64, 8))
    assert find_candidates(profile).replays == ()
    for budget in ("lowest", "1GB"):
        plan = autockpt.solve(profile, budget)
        assert plan.segments == ()
        assert plan.peak_bytes == plan.plain_peak_bytes


def test_a_step_without_a_backward_is_refused() -> None:
    profile = forward_of(chain_profile())
    for ask in (lambda: autockpt.solve(profile, "1GB"), lambda: autockpt.frontier(profile, points=2)):
        with pytest.raises(NotApplicable, match=r"ends with forward.*loss requires gradients"):
            ask()


def forward_of(profile: Profile) -> Profile:
    """The same step, cut where forward ends."""
    end, tensors, saves = profile.forward_ticks, profile.tensors, profile.saves
    there = [i for i, birth in enumerate(tensors.birth) if birth < end]
    return msgspec.structs.replace(
        profile,
        ticks=end,
        tensors=type(tensors)(
            bytes=tuple(tensors.bytes[i] for i in there),
            birth=tuple(tensors.birth[i] for i in there),
            natural=tuple(min(tensors.natural[i], end) for i in there),
            death=tuple(min(tensors.death[i], end) for i in there),
        ),
        saves=msgspec.structs.replace(saves, unpack=(end,) * len(saves), release=(end,) * len(saves)),
    )


@pytest.mark.parametrize("seconds", [math.nan, -1.0, math.inf])
def test_seconds_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidFile, match="record the step again"):
        msgspec.structs.replace(chain_profile(), plain_seconds=seconds)
    saves = chain_profile().saves
    with pytest.raises(InvalidFile, match="record the step again"):
        msgspec.structs.replace(
            chain_profile(), saves=msgspec.structs.replace(saves, seconds=(seconds, *saves.seconds[1:]))
        )


@pytest.mark.parametrize("seconds", [math.nan, -1.0, "3", True, None])
def test_a_time_to_search_is_a_number(seconds: object) -> None:
    with pytest.raises(autockpt.BudgetError, match=r"a number of seconds such as 3.0, and not for"):
        autockpt.solve(chain_profile(), "lowest", seconds=seconds)  # type: ignore[arg-type]
