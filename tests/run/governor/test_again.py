"""A second size of a step in one run: the bytes of a whole recording, or none."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import patch

import msgspec
import pytest
import torch
from torch import nn

import autockpt
from autockpt._data.profile import Profile
from autockpt._record.recorder import record_step
from autockpt._record.step import TrainingStep, training_step
from autockpt._run.governor import governor
from autockpt._run.governor.again import record_again
from autockpt._run.growth import same_structure
from tests.run.governor.loops import Loop, inside, language_model, tokens_of

LAYERS = 2


def step_of(length: int, *, batch: int = 2) -> TrainingStep:
    tokens = tokens_of(batch, length)
    return training_step(language_model(LAYERS), {**tokens, "labels": tokens["input_ids"]}, None)


def bytes_of(profile: Profile) -> tuple[object, ...]:
    """All but seconds, signatures and words."""
    return (
        profile.tensors,
        msgspec.structs.replace(profile.saves, seconds=()),
        msgspec.structs.replace(profile.functions, seconds=()),
        msgspec.structs.replace(profile.ops, seconds=()),
        profile.static,
        profile.buffer_bytes,
    )


def test_one_run_tells_what_a_whole_recording_does() -> None:
    known = record_step(step_of(24))
    for step in (step_of(40), step_of(12), step_of(24, batch=3)):
        whole = record_step(step)
        again = record_again(step, known)
        assert again is not None
        assert same_structure(again, whole) == ""
        assert bytes_of(again) == bytes_of(whole)
        for profile in (again, whole):
            spans = [call.forward_seconds for call in profile.calls]
            assert 0 < max(spans) == spans[0] < profile.plain_seconds
        within: dict[int, float] = defaultdict(float)
        for function, seconds in zip(again.ops.function, again.ops.seconds, strict=True):
            within[function] += seconds
        within.pop(-1, None)
        assert list(within.values()) == pytest.approx([again.functions.seconds[function] for function in within])


def test_calls_that_part_at_the_second_size_are_not_alike() -> None:
    class Window(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.width = width
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            recent: torch.Tensor = self.linear(x[-self.width :]).exp()
            return recent.mean(0, keepdim=True) + x

    model = nn.Sequential(Window(16), Window(32), Window(32))
    known = record_step(training_step(model, torch.randn(16, 8), None))
    again = record_again(training_step(model, torch.randn(32, 8), None), known)
    assert again is not None
    windows = {key: [call.signature for call in each.calls if call.class_name == "Window"] for key, each in
               {"known": known, "again": again}.items()}  # fmt: skip
    assert len(set(windows["known"])) == 1
    assert windows["again"][0] != windows["again"][1] == windows["again"][2]


class Long(nn.Module):
    """Does something else for long sequences."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(8, 8), what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.linear(x)
        active, what = first.relu(), self.what if x.shape[1] > 16 else ""
        if what == "another function":
            return active.mul(2.0)
        if what == "one more tensor":
            return active.exp().mul(torch.ones(()))
        if what == "another call":
            active = active + self.linear(x)
        if what == "another lifetime":
            del first
        return active.exp()


@pytest.mark.parametrize("what", ["another function", "one more tensor", "another call", "another lifetime"])
def test_a_step_that_does_something_else_is_none(what: str) -> None:
    model = Long(what)
    known = record_step(training_step(model, torch.randn(2, 16, 8), None))
    assert record_again(training_step(model, torch.randn(2, 12, 8), None), known) is not None
    assert record_again(training_step(model, torch.randn(2, 17, 8), None), known) is None


def test_a_budget_is_held_by_one_whole_recording_and_one_brief() -> None:
    loop = Loop(autockpt.apply(language_model(LAYERS), "8MB"), inside)
    with (
        patch.object(governor, "record_step", side_effect=record_step) as whole,
        patch.object(governor, "record_again", side_effect=record_again) as brief,
    ):
        loop.losses([tokens_of(2, length) for length in (16, 24, 20, 48, 64)])
    assert (whole.call_count, brief.call_count) == (1, 1)


def test_where_sizes_do_different_things_each_is_recorded_whole() -> None:
    model = Long("another function")
    autockpt.apply(model, "1MB")
    with (
        patch.object(governor, "record_step", side_effect=record_step) as whole,
        patch.object(governor, "record_again", side_effect=record_again) as brief,
    ):
        for length in (8, 17, 24):
            model(torch.randn(2, length, 8)).sum().backward()
            model.zero_grad()
    assert brief.call_count == 1
    assert whole.call_count == 3
