"""Autocast keeps the casts of weights in a cache; a replay neither reads that cache nor leaves anything in it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from autockpt.solvers import simulate
from tests.doors import find_candidates, segments_of
from tests.frames.comparing import Run, assert_same, steps
from tests.frames.models import WIDTH, batch
from tests.toys.chains import through
from tests.toys.told import around, casting


class Sharing(nn.Module):
    """Uses one weight in two modules and in its own code, so that only the first use casts it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, shared = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first = nn.Sequential(nn.Tanh(), shared, nn.Tanh())
        self.second = nn.Sequential(shared, nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        weight = self.second.get_submodule("0").weight
        out: Tensor = self.first(x) + self.second(x) + nn.functional.linear(x, weight)  # type: ignore[arg-type]
        return out


def loss(model: nn.Module, scale: float = 1.0) -> Tensor:
    out: Tensor = model(batch(4, WIDTH) * scale).float().square().sum()
    return out


def region(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss(model)


def backward_inside(model: nn.Module) -> Tensor:
    """Replays in the region, then runs forward again with what the cache holds by then."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = loss(model)
        torch.autograd.grad(first, list(model.parameters()), retain_graph=True)
        return first + loss(model, 2.0)


@pytest.mark.parametrize("run", [region, backward_inside])
@pytest.mark.parametrize("plan", [["first"], ["second"], ["first", "second"], [["first", "second"]]], ids=str)
def test_weights_that_several_segments_share_are_cast_in_any_of_them(plan: Any, run: Run) -> None:
    assert_same(Sharing(), plan, run)


def test_a_replay_leaves_no_stale_cast_for_the_forward_after_the_update() -> None:
    def trained(model: nn.Module) -> Tensor:
        first = region(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first.backward()  # outside the region of its forward, so here nothing is in the cache
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)  # type: ignore[arg-type]
            return loss(model)

    plain, planned = Sharing(), Sharing()
    autockpt.apply(planned, plan=Plan.of([["first", "second"]]))
    assert torch.equal(trained(planned), trained(plain))


def test_a_replay_does_not_empty_the_cache_of_the_region_around_it() -> None:
    def casts(model: nn.Module) -> int:
        """Count the casts of the shared weight in the graph of two forwards of one region."""
        total = backward_inside(model)
        found, todo = set(), [total.grad_fn]
        while todo:
            node = todo.pop()
            if node is not None and node not in found:
                found.add(node)
                todo.extend(target for target, _ in node.next_functions)
        return sum(type(node).__name__ == "ToCopyBackward0" for node in found)

    plain, planned = Sharing(), Sharing()
    autockpt.apply(planned, plan=Plan.of(["first", "second"]))
    assert casts(planned) == casts(plain)


def test_the_settings_are_back_after_a_replay() -> None:
    model = Sharing()
    autockpt.apply(model, plan=Plan.of(["first"]))
    total = region(model)
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        total.backward()
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.float16
        assert not torch.is_autocast_cache_enabled()
    assert torch.is_autocast_cache_enabled()


def test_weights_cast_before_a_call_do_not_refuse_it() -> None:
    model = nn.Sequential(around(casting(Sharing()), lambda inner, x: inner(x).float()), nn.Linear(WIDTH, 1))
    profile = autockpt.profile(model, batch(64, WIDTH))
    assert find_candidates(profile).refused == ()
    candidates = find_candidates(profile)
    for segment in segments_of(candidates, range(len(candidates.replays))):
        one, other = copy.deepcopy(model), copy.deepcopy(model)
        autockpt.apply(other, plan=Plan(segments=(segment,)))
        assert steps(one, loss).differences(steps(other, loss)) == []


def repeating() -> nn.Module:
    """Runs one block six times."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
    return around(block, lambda block, x: through([block] * 6, x))


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize(
    ("calls", "parent"),
    [([f"inner.inner#{i}" for i in range(6)], "inner#0"), (["inner#0"], "#0")],
    ids=["in calls of a run", "inside a call"],
)
def test_the_casts_that_a_replay_makes_again_at_every_use_are_predicted(calls: list[str], parent: str) -> None:
    model, x = casting(repeating()), torch.randn(32, 128)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    step()
    profile = autockpt.profile(model, x)
    candidates = find_candidates(profile)
    names = [[candidates.index.nodes[member].key for member in run.members] for run in candidates.replays]
    whole = [i for i, run in enumerate(candidates.replays) if names[i] == calls and not run.alone]
    predicted = simulate(candidates.problem, whole).peak_bytes - profile.static.total_bytes
    autockpt.apply(model, plan=Plan(segments=(autockpt.Segment(calls=tuple(calls), parent=parent),)))
    step()
    measured = autockpt.measure(step, device="cpu").step_bytes
    assert predicted == pytest.approx(measured, rel=0.02)
    assert predicted >= measured


def blocks() -> nn.Module:
    torch.manual_seed(0)
    inner = (nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4))
    return nn.Sequential(*(around(each, lambda inner, x: x + inner(x)) for each in inner))


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Several forwards in one region of autocast: those after the first read what that has cast.

    Attributes:
        number: how many.
        inside: whether each has its backward in the region; else there is one backward after it.
        updates: whether the optimizer steps after each backward inside: from then on the casts are stale.
        zeroes: whether gradients stay, with zeros, from step to step. Then forwards are alike whether or not they cast.
    """

    number: int
    inside: bool = True
    updates: bool = False
    zeroes: bool = False

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        losses = []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for scale in range(1, self.number + 1):
                losses.append(model(batch(256, 32) * scale).float().square().mean())
                if self.inside:
                    losses.pop().backward()
                if self.updates:
                    optimizer.step()
        if losses:
            torch.stack(losses).sum().backward()
        optimizer.step()

    def train(self, model: nn.Module, steps: int = 5) -> tuple[list[bytes], int]:
        """Return the bits of the gradients of each step, and the peak of one more."""
        optimizer, found = torch.optim.SGD(model.parameters(), 0.01), []
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=not self.zeroes)
            self.step(model, optimizer)
            found += [each.grad.numpy().tobytes() for each in model.parameters() if each.grad is not None]
        optimizer.zero_grad(set_to_none=not self.zeroes)
        return found, autockpt.measure(lambda: self.step(model, optimizer)).peak_bytes


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize(
    "loop",
    [Microbatches(2), Microbatches(3), Microbatches(3, zeroes=True), Microbatches(2, inside=False)],
    ids=["two", "three", "three, zeroed gradients", "backward outside"],
)
def test_microbatches_of_one_region_are_recomputed_with_its_casts(loop: Microbatches) -> None:
    plain, plain_bytes = loop.train(blocks())
    for budget in ("lowest", round(0.7 * plain_bytes)):
        model = autockpt.apply(blocks(), budget)
        planned, measured_bytes = loop.train(model)
        plan = autockpt.plan_of(model)
        assert plan is not None and plan.segments and not any("closure" in each.reason for each in plan.refused)
        assert planned == plain
        assert measured_bytes < 0.7 * plain_bytes
        assert measured_bytes <= plan.peak_bytes <= 1.05 * measured_bytes


@pytest.mark.usefixtures("bfloat16")
def test_casts_that_an_update_made_stale_are_read_again_by_no_replay() -> None:
    loop = Microbatches(2, updates=True)
    plain, _ = loop.train(blocks())
    planned, _ = loop.train(autockpt.apply(blocks(), "lowest"))
    assert planned == plain
