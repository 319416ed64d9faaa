"""Selective candidates of models that make it hard: whatever a menu offers is as exact as the plain step."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import autockpt
from autockpt import Plan, Segment
from tests.doors import Candidates, ProfileIndex, find_candidates, install, plan_page, segments_of, state_flow
from tests.frames.comparing import steps
from tests.fuzz.units import without_host
from tests.toys.chains import Residual
from tests.toys.told import Told

WIDTH = 16
ROWS = 2048
"""So many that operators take longer than the host: otherwise no unit is worth keeping."""


def fills_list() -> nn.Module:
    """Hands a list to a part that fills it, and reads it afterwards."""

    def filling(own: Told, x: Tensor, found: list[Tensor]) -> Any:
        out = own.body(x)
        found.append(out.tanh())
        return out

    def act(own: Told, x: Tensor) -> Any:
        found: list[Tensor] = []
        x = own.filling(x, found)
        return (own.body(x) * torch.stack(found).sigmoid().sum(0)).tanh()

    return Told(act, filling=Told(filling, body=Residual(WIDTH)), body=Residual(WIDTH))


def fills_cache() -> nn.Module:
    """Keeps what a part computed in an attribute of it."""

    def caching(own: Told, x: Tensor) -> Any:
        own.cache.append(own.body(x).tanh())
        return own.cache[-1].sin()

    def act(own: Told, x: Tensor) -> Any:
        x = own.caching(x)
        return own.body(x) * own.caching.cache.pop().sigmoid()

    return Told(act, caching=Told(caching, body=Residual(WIDTH), cache=[]), body=Residual(WIDTH))


def averages() -> nn.Module:
    """Reads a buffer that a part has just changed."""

    def averaging(own: Told, x: Tensor) -> Any:
        own.mean.mul_(0.9).add_(x.detach().mean(0))
        return own.body(x)

    def act(own: Told, x: Tensor) -> Any:
        x = own.averaging(x)
        return (own.body(x) * own.averaging.mean.exp()).tanh()

    return Told(act, averaging=Told(averaging, body=Residual(WIDTH), mean=torch.zeros(WIDTH)), body=Residual(WIDTH))


def normalises() -> nn.Module:
    """Statistics that only their norm uses, others whose weight follows from their own counter, and shared ones."""

    def act(own: Told, x: Tensor) -> Tensor:
        x = nn.functional.gelu(own.own(own.body(x)))
        x = nn.functional.gelu(own.counts(own.scale(x)))
        return torch.tanh(own.shared(torch.tanh(own.shared(x))))

    norms = {
        "own": nn.BatchNorm1d(WIDTH),
        "shared": nn.BatchNorm1d(WIDTH),
        "counts": nn.BatchNorm1d(WIDTH, momentum=None),
    }
    return Told(act, body=Residual(WIDTH), **norms, scale=parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))


def of_two(act: Callable[..., Any], **parts: nn.Module) -> nn.Module:
    return Told(act, body=Residual(WIDTH), other=Residual(WIDTH), **parts)


def branches() -> nn.Module:
    """Reads values in Python, and goes on accordingly."""

    def act(own: Told, x: Tensor) -> Any:
        y = own.body(x)
        scale = 2.0 if y.mean() > 0.0 else 0.5
        return own.other(y * scale / float(y.detach().abs().max().item())).tanh()

    return of_two(act)


def in_place() -> nn.Module:
    """Changes results in place, also those of parts."""

    def act(own: Told, x: Tensor) -> Any:
        y = own.other(own.relu(own.body(x)).sin()).mul_(0.5)
        y += x
        return own.relu(y - 0.1).tanh()

    return of_two(act, relu=nn.ReLU(inplace=True))


def random() -> nn.Module:
    """Draws in units and between them."""

    def act(own: Told, x: Tensor) -> Any:
        y = own.dropout(own.body(x)) * torch.rand_like(x)
        return own.dropout(own.other(y)).tanh() + torch.randn_like(y)

    return of_two(act, dropout=nn.Dropout(0.3))


def picks() -> nn.Module:
    """Takes one of its weights by a number that a tensor tells: a view, for which that tensor's value is needed."""

    def act(own: Told, x: Tensor) -> Any:
        with torch.no_grad():
            number = x.mean(0)[:4].argmax()
        return own.body(nn.functional.linear(x, own.weights[number]).tanh()).tanh()

    return Told(act, body=Residual(WIDTH), weights=nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 4))


def selective(candidates: Candidates) -> list[int]:
    return [index for index, run in enumerate(candidates.replays) if run.alone]


@pytest.mark.parametrize(
    "block",
    [fills_list, fills_cache, averages, normalises, branches, in_place, random, picks],
    ids=lambda b: b.__name__,
)
def test_every_entry_of_a_menu_is_exact(block: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(block() for _ in range(3)))
    batch = torch.randn(ROWS, WIDTH)

    def run(model: nn.Module) -> Tensor:
        out: Tensor = model(batch)
        return out.square().mean()

    candidates = find_candidates(without_host(autockpt.profile(model, batch), dice=0))
    offered = selective(candidates)
    assert offered or block is fills_cache  # which is refused as a whole
    expected = steps(copy.deepcopy(model), run)
    assert all(loss.isfinite() for loss in expected.of("loss").values())
    for index in offered:
        planned = copy.deepcopy(model)
        install(planned, Plan(segments=segments_of(candidates, [index])))
        assert expected.differences(steps(planned, run)) == [], candidates.problem.candidates[index].name


def units_of(profile: autockpt.Profile) -> dict[str, bool]:
    """The functions of the first part of a model that cost something, and whether a replay can do without each."""
    index = ProfileIndex(profile)
    stated = state_flow(index, (next(node for node in index.call_nodes if index.nodes[node].key == "0#0"),))
    assert stated is not None
    return {unit.name: unit.keepable for unit in stated[1].units}


@pytest.mark.parametrize("unit", ["own#0", "own#0/batch_norm#0", "counts#0/batch_norm#0"])
def test_a_norm_is_a_unit_if_nothing_else_uses_its_statistics(unit: str) -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(*(normalises() for _ in range(2))), torch.randn(64, WIDTH)
    profile = autockpt.profile(model, batch)
    keepable = {name for name, able in units_of(profile).items() if able}
    assert {"0.own#0/batch_norm#0", "0.counts#0/batch_norm#0"} <= keepable
    assert keepable.isdisjoint({"0.shared#0/batch_norm#0", "0.shared#1/batch_norm#0"})

    expected = steps(copy.deepcopy(model), lambda model: model(batch).square().mean())
    install(model, Plan(segments=(Segment(calls=("0#0",), keep=(f"0.{unit}",)),)))
    assert expected.differences(steps(model, lambda model: model(batch).square().mean())) == []


def test_a_norm_that_counts_its_statistics_as_changed_is_no_unit() -> None:
    block = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Unflatten(0, (4, -1)), nn.InstanceNorm1d(16, track_running_stats=True)
    )
    profile = autockpt.profile(nn.Sequential(block, nn.Flatten(0, 1), nn.GELU()), torch.randn(64, WIDTH))
    assert units_of(profile)["0.2#0/instance_norm#0"] is False


def test_explain_tells_units_and_what_is_decided_about_them() -> None:
    model = nn.Sequential(Residual(WIDTH), Residual(WIDTH), nn.Linear(WIDTH, 1))
    profile = autockpt.profile(model, torch.randn(64, WIDTH))
    segment = Segment(calls=("0#0",), keep=("0.norm#0", "0#0/gelu#0"))
    report: Any = plan_page(Plan(segments=(segment,)), profile).document
    assert [(row.keep, row.skip) for row in report["segments"]] == [(("norm", "/gelu#0"), ())]
    found = {row.first: [(each.decision, each.reason) for each in row.decided] for row in report["activations"].rows}
    assert ("partly", "chosen") in found["0#0"]
    assert ("kept", "read") in found["0.norm#0"]
    document = json.loads(msgspec.json.encode(report))
    assert document["segments"][0]["keep"] == ["norm", "/gelu#0"]
