"""Calls of which nothing runs in a replay: each is one unit, unless more tells that it ran than its result."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, Profile, Segment
from tests.doors import ProfileIndex, find_candidates, find_planned, frames_units, install, replay_of, segments_of
from tests.end_to_end.reference import reference
from tests.end_to_end.test_budgets import PREDICTION_TOLERANCE
from tests.frames.comparing import steps
from tests.hosts import host
from tests.toys.told import Told

WIDTH, ROWS = 8, 32


Leaves = Callable[[Told, Tensor, Tensor, list[Tensor]], Any]


def block(leaves: Leaves = lambda mlp, up, out, given: out) -> nn.Module:
    """Three functions, of whose results `leaves` may do something more, between another and some that read them."""

    def feeds(mlp: Told, x: Tensor, given: list[Tensor]) -> Any:
        up = nn.functional.gelu(mlp.up(x))
        return leaves(mlp, up, mlp.down(up), given)

    def act(own: Told, x: Tensor) -> Any:
        given: list[Tensor] = []
        made = own.mlp(x.tanh(), given)
        out = made.out if isinstance(made, Box) else made
        for each in (*given, *own.mlp.found):
            out = out + each.sum()
        own.mlp.found.clear()
        return (out * 2).sigmoid().tanh()

    up, down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    return Told(act, mlp=Told(feeds, up=up, down=down, last=None, found=[], runs=0))


class Box:
    """A result that a replay cannot take apart: it has state in C."""

    def __init__(self, out: Tensor) -> None:
        self.out, self.lock = out, __import__("threading").Lock()


def stack(*leaves: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(block(*leaves) for _ in range(3)))


def batch() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH)


def run(model: nn.Module) -> Tensor:
    out: Tensor = model(batch())
    return out.square().mean()


def kept_of(profile: Profile) -> tuple[str, ...]:
    """What the replay of the second block keeps where nothing of its part runs again."""
    index = ProfileIndex(profile)
    block, part = (next(n for n in index.call_nodes if index.nodes[n].key == key) for key in ("1#0", "1.mlp#0"))
    replay = replay_of(index, (block,), index.within((part,), index.functions))
    assert replay is not None
    return replay.segment.keep


def test_a_call_of_which_nothing_runs_again_is_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack()
    profile = autockpt.profile(model, batch())
    assert kept_of(profile) == ("1.mlp#0",)
    modes: list[object] = []
    monkeypatch.setattr(frames_units.FunctionWatch, "__init__", lambda *args: modes.append(args))
    expected = steps(copy.deepcopy(model), run)
    install(model, Plan(segments=(Segment(calls=("1#0",), keep=("1.mlp#0",)),)))
    assert expected.differences(steps(model, run)) == []
    assert modes == []


def test_only_functions_are_looked_for_by_a_mode() -> None:
    """A whole call costs what one function does, and nothing for a mode."""
    profile = autockpt.profile(stack(), batch())

    def seconds(keep: tuple[str, ...], **costs: float) -> float:
        with host(**costs):
            planned = find_planned(profile, Plan(segments=(Segment(calls=("1#0",), keep=keep),)))
        return planned.problem.candidates[0].recompute_seconds

    functions = ("1.mlp.up#0/linear#0", "1.mlp#0/gelu#0", "1.mlp.down#0/linear#0")
    whole = ("1.mlp#0",)
    assert seconds(whole, kept_seconds=1.0) - seconds(whole) == pytest.approx(1)
    assert seconds(whole, mode_seconds=1.0) == pytest.approx(seconds(whole))
    assert seconds(functions, kept_seconds=1.0) - seconds(functions) == pytest.approx(3)
    assert seconds(functions, mode_seconds=1.0) - seconds(functions) >= 3


def stores_its_result(mlp: Told, up: Tensor, out: Tensor, given: list[Tensor]) -> Tensor:
    mlp.last = out.detach()
    return out


def stores_another(mlp: Told, up: Tensor, out: Tensor, given: list[Tensor]) -> Tensor:
    mlp.last = up.detach()
    return out


def fills_a_list(mlp: Told, up: Tensor, out: Tensor, given: list[Tensor]) -> Tensor:
    given.append(out)
    return out


def fills_its_own(mlp: Told, up: Tensor, out: Tensor, given: list[Tensor]) -> Tensor:
    mlp.found.append(up)
    return out


def counts(mlp: Told, up: Tensor, out: Tensor, given: list[Tensor]) -> Tensor:
    mlp.runs += 1
    return out


KEPT_ELSEWHERE: list[Tensor] = []


def keeps_elsewhere(mlp: Told, up: Tensor, out: Tensor, given: list[Tensor]) -> Tensor:
    KEPT_ELSEWHERE[:] = [up.detach()]
    return out


def returns_an_object(mlp: Told, up: Tensor, out: Tensor, given: list[Tensor]) -> Box:
    return Box(out)


@pytest.mark.parametrize(
    "leaves",
    [stores_its_result, stores_another, fills_a_list, fills_its_own, counts, keeps_elsewhere, returns_an_object],
    ids=lambda each: each.__name__,
)
def test_a_call_that_leaves_more_than_its_result_is_no_unit(leaves: Any) -> None:
    model = stack(leaves)
    keep = kept_of(autockpt.profile(model, batch()))
    assert keep
    assert "1.mlp#0" not in keep
    expected = steps(copy.deepcopy(model), run)
    install(model, Plan(segments=(Segment(calls=("1#0",), keep=keep),)))
    assert expected.differences(steps(model, run)) == []


def test_a_call_around_one_that_leaves_traces_is_no_unit() -> None:
    profile = autockpt.profile(nn.Sequential(nn.Sequential(stack(counts), nn.Tanh()), nn.Linear(WIDTH, 1)), batch())
    refused = {profile.calls[call].key for call in profile.refused("unit")}
    assert {"0#0", "0.0#0", "0.0.1#0", "0.0.1.mlp#0"} <= refused
    assert refused.isdisjoint({"0.1#0", "0.0.1.mlp.up#0", "1#0"})


@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_predicted_peaks_are_measured(model: str) -> None:
    plain = reference(model)
    found = find_candidates(plain.profile)
    whole = [i for i, replay in enumerate(found.replays) if replay.whole]
    for i in random.Random(0).sample(whole, min(len(whole), 6)):
        segments = segments_of(found, [i])
        peak_bytes = Plan(segments=segments).timeline(plain.profile).peak_bytes
        autockpt.apply(plain.case.model, plan=Plan(segments=segments))
        try:
            outcome, measured = plain.outcome(), plain.measured_peak()
        finally:
            autockpt.remove(plain.case.model)
        assert plain.plain.differences(outcome) == []
        assert peak_bytes == pytest.approx(measured, rel=PREDICTION_TOLERANCE)
    assert whole
