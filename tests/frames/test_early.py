"""Replays that run before their backward, as those of pipelines do, make the gradients of the plain step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autockpt import Plan
from tests.doors import install, patched_behind
from tests.frames.models import cnn, images

MEDDLING: dict[str, Callable[[nn.Module], object]] = {
    "nothing": lambda model: None,
    "evaluates": lambda model: model.eval(),
    "draws": lambda model: torch.rand(7),
    "seeds": lambda model: torch.manual_seed(5),
    "no gradients": lambda model: [each.detach().mul(2) for each in model.parameters()],
    "another forward": images,
}
"""What a loop may do around a replay, none of which changes a gradient."""


def dropping() -> nn.Sequential:
    model = cnn()
    return model.append(nn.Dropout(0.3))


def early(model: nn.Module, plan: Plan) -> list[Any]:
    """Put a plan on, all of whose replays may run early; return the list that gets the frames of each forward."""
    install(model, plan)
    frames: list[Any] = []
    known = patched_behind(model)
    assert known is not None
    handle: Any = known[1]
    handle.table = dataclasses.replace(handle.table, early=range(len(plan.segments)))
    handle.made_early = lambda outputs, made: frames.append(made)
    return frames


def step(model: nn.Module, frames: list[Any], before: str, after: str, replayed: list[int]) -> list[Tensor]:
    """Take a step; return all gradients, the buffers, and what the generator draws next."""
    torch.manual_seed(1)
    loss = images(model)
    own = list(frames[0]) if frames else []
    MEDDLING[before](model)
    for number in replayed:
        drawn = torch.get_rng_state()
        buffers = [each.clone() for each in model.buffers()]
        if own:
            own[number]().replay()
        assert torch.equal(drawn, torch.get_rng_state())
        assert all(map(torch.equal, buffers, model.buffers()))
    MEDDLING[after](model)
    loss.backward()
    assert not any(frame() for frame in own)
    gradients = [each.grad for each in model.parameters()]
    return [*(each for each in gradients if each is not None), *model.buffers(), torch.rand(2)]


@settings(max_examples=20)
@given(st.sampled_from(list(MEDDLING)), st.sampled_from(list(MEDDLING)), st.lists(st.integers(0, 2), max_size=4))
def test_a_replay_that_runs_early_makes_the_same_bits(before: str, after: str, replayed: list[int]) -> None:
    expected = step(dropping(), [], before, after, replayed)
    model = dropping()
    frames = early(model, Plan.of([["0", "1"], "2", "5"]))
    found = step(model, frames, before, after, replayed)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


def test_a_replay_that_ran_early_does_not_run_again() -> None:
    model, runs = dropping(), list[int]()
    frames = early(model, Plan.of([["0", "1"]]))
    model.get_submodule("1.0").register_forward_hook(lambda *_: runs.append(1))
    loss = images(model)
    frames[0][0]().replay()
    assert len(runs) == 2
    loss.backward()
    assert len(runs) == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_weight_that_is_changed_around_it_is_refused_as_in_the_plain_step(when: str) -> None:
    """Autograd refuses it too: no gradient of a mixture."""

    def run(frames: list[Any], model: nn.Module) -> None:
        loss = images(model)
        change = functools.partial(torch.no_grad()(lambda weight: weight.mul_(2)), model.get_parameter("1.0.weight"))
        if when == "before":
            change()
        if frames:
            frames[0][0]().replay()
        if when == "after":
            change()
        loss.backward()

    for model in (plain := dropping(), dropping()):
        frames = [] if model is plain else early(model, Plan.of([["0", "1"]]))
        with pytest.raises(RuntimeError, match=r"in.?place"):
            run(frames, model)
