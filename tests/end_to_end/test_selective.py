"""Selective candidates of models that make it hard: whatever a menu offers is as exact as the plain step."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, Segment
from tests.doors import Candidates, ProfileIndex, find_candidates, install, plan_page, segments_of, state_flow
from tests.frames.comparing import steps
from tests.fuzz.units import without_host

WIDTH = 16
ROWS = 2048
"""So many that operators take longer than the host: otherwise no unit is worth keeping."""


class Body(nn.Module):
    """Enough units that a menu has something to choose from."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


class FillsList(nn.Module):
    """Hands a list to a part that fills it, and reads it afterwards."""

    class Filling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Body()

        def forward(self, x: Tensor, found: list[Tensor]) -> Tensor:
            out: Tensor = self.body(x)
            found.append(out.tanh())
            return out

    def __init__(self) -> None:
        super().__init__()
        self.filling, self.body = self.Filling(), Body()

    def forward(self, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        x = self.filling(x, found)
        out: Tensor = self.body(x) * torch.stack(found).sigmoid().sum(0)
        return out.tanh()


class FillsCache(nn.Module):
    """Keeps what a part computed in an attribute of it."""

    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Body()
            self.cache: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.cache.append(self.body(x).tanh())
            return self.cache[-1].sin()

    def __init__(self) -> None:
        super().__init__()
        self.caching, self.body = self.Caching(), Body()

    def forward(self, x: Tensor) -> Tensor:
        x = self.caching(x)
        out: Tensor = self.body(x) * self.caching.cache.pop().sigmoid()
        return out


class Averages(nn.Module):
    """Reads a buffer that a part has just changed."""

    class Averaging(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.body = Body()
            self.register_buffer("mean", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.9).add_(x.detach().mean(0))
            out: Tensor = self.body(x)
            return out

    def __init__(self) -> None:
        super().__init__()
        self.averaging, self.body = self.Averaging(), Body()

    def forward(self, x: Tensor) -> Tensor:
        x = self.averaging(x)
        out: Tensor = self.body(x) * self.averaging.mean.exp()
        return out.tanh()


class Normalises(nn.Module):
    """Statistics that only their norm uses, others whose weight follows from their own counter, and shared ones."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.own, self.shared = Body(), nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)
        self.counts = nn.BatchNorm1d(WIDTH, momentum=None)
        self.scale = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(self.own(self.body(x)))
        x = nn.functional.gelu(self.counts(self.scale(x)))
        out: Tensor = self.shared(torch.tanh(self.shared(x)))
        return torch.tanh(out)


class Branches(nn.Module):
    """Reads values in Python, and goes on accordingly."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other = Body(), Body()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        scale = 2.0 if y.mean() > 0.0 else 0.5
        out: Tensor = self.other(y * scale / float(y.detach().abs().max().item()))
        return out.tanh()


class InPlace(nn.Module):
    """Changes results in place, also those of parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other, self.relu = Body(), Body(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.other(self.relu(self.body(x)).sin()).mul_(0.5)
        y += x
        out: Tensor = self.relu(y - 0.1).tanh()
        return out


class Random(nn.Module):
    """Draws in units and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other, self.dropout = Body(), Body(), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.dropout(self.body(x)) * torch.rand_like(x)
        out: Tensor = self.dropout(self.other(y)).tanh() + torch.randn_like(y)
        return out


class Picks(nn.Module):
    """Takes one of its weights by a number that a tensor tells: a view, for which that tensor's value is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.weights = Body(), nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            number = x.mean(0)[:4].argmax()
        out: Tensor = self.body(nn.functional.linear(x, self.weights[number]).tanh())
        return out.tanh()


def selective(candidates: Candidates) -> list[int]:
    return [index for index, run in enumerate(candidates.replays) if run.alone]


@pytest.mark.parametrize(
    "block",
    [FillsList, FillsCache, Averages, Normalises, Branches, InPlace, Random, Picks],
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
    assert offered or block is FillsCache  # which is refused as a whole
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
    model, batch = nn.Sequential(*(Normalises() for _ in range(2))), torch.randn(64, WIDTH)
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
    model = nn.Sequential(Body(), Body(), nn.Linear(WIDTH, 1))
    profile = autockpt.profile(model, torch.randn(64, WIDTH))
    segment = Segment(calls=("0#0",), keep=("0.norm#0", "0#0/gelu#0"))
    report: Any = plan_page(Plan(segments=(segment,)), profile).document
    assert [(row.keep, row.skip) for row in report["segments"]] == [(("norm", "/gelu#0"), ())]
    found = {row.first: [(each.decision, each.reason) for each in row.decided] for row in report["activations"].rows}
    assert ("partly", "chosen") in found["0#0"]
    assert ("kept", "read") in found["0.norm#0"]
    document = json.loads(msgspec.json.encode(report))
    assert document["segments"][0]["keep"] == ["norm", "/gelu#0"]
