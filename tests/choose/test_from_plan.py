"""A candidate says what a plan of its segment alone would."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from autockpt import Plan
from autockpt.solvers import simulate
from tests.doors import Candidates, find_candidates, find_planned, segments_of
from tests.zoo import UNet, t5, tokens

SAMPLE = 25
"""Candidates that are held against plans of their own."""


def transformer(size: int) -> tuple[nn.Module, dict[str, Any]]:
    """With dropout inside attention."""
    model, _ = t5()
    return model.train(), tokens(500, size, 32)


def unet(size: int) -> tuple[nn.Module, dict[str, Any]]:
    """With functions around its blocks, and buffers."""
    return UNet(8), {"image": torch.randn(size, 3, 32, 32)}


@pytest.mark.parametrize("build", [transformer, unet])
def test_a_candidate_is_what_a_plan_of_its_segment_alone_says(build: Any) -> None:
    torch.manual_seed(0)
    profile = autockpt.profile(*build(6))
    found = find_candidates(profile)
    everything = range(len(found.replays))
    segments = segments_of(found, everything)
    assert any("/" in call for segment in segments for call in segment.calls)  # functions of the root's own code
    for index in random.Random(0).sample(everything, SAMPLE):
        segment = segments[index]
        alone = find_planned(profile, Plan(segments=(segment,)))
        assert segments_of(alone, [0]) == (segment,)
        assert of(alone, 0) == of(found, index)


def of(candidates: Candidates, index: int) -> tuple[object, ...]:
    """What a candidate holds, costs and comes to, in no problem's own numbers."""
    stated, problem = candidates.problem.candidates[index], candidates.problem
    return (
        stated.name,
        stated.recompute_seconds,
        sorted(candidates.index.profile.tensors.birth[candidates.tensors[hold.tensor]] for hold in stated.holds),
        sorted(addition.bytes for addition in stated.additions),
        simulate(problem, (index,)).peak_bytes,
    )
