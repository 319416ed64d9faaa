"""Backwards inside backwards: a tensor's hook solves for the gradient of a fixed point, as equilibrium models do."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import InvalidFile
from tests.loops.models import loss_of
from tests.loops.twin import Run, held, steps
from tests.rows import swept


class Balanced(nn.Module):
    """A linear layer, the fixed point of a block, and a linear layer.

    Args:
        turns: how often the hook asks for a gradient of the block; each of these passes keeps the graph.
    """

    def __init__(self, turns: int = 3) -> None:
        super().__init__()
        self.turns = turns
        self.enter, self.leave = nn.Linear(32, 32), nn.Linear(32, 32)
        self.wide = nn.ModuleList(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def block(self, state: Tensor, given: Tensor) -> Tensor:
        hidden = state + given
        for each in self.wide:
            hidden = hidden + 0.1 * each(hidden)
        return self.norm(hidden)  # type: ignore[no-any-return]

    def forward(self, batch: Tensor) -> Tensor:
        given = self.enter(batch)
        with torch.no_grad():
            state = self.block(torch.zeros_like(given), given)
        state = self.block(state, given)
        start = state.detach().requires_grad_()
        again = self.block(start, given)

        def solve(gradient: Tensor) -> Tensor:
            found = gradient
            for _ in range(self.turns):
                found = torch.autograd.grad(again, start, found, retain_graph=True)[0] + gradient
            return found

        if state.requires_grad:
            state.register_hook(solve)
        return self.leave(state)  # type: ignore[no-any-return]


def loop(run: Run) -> None:
    for batch in steps(rows=1024):

        def one(batch: Tensor = batch) -> Tensor:
            loss = loss_of(run.model(batch))
            loss.backward()
            run.update()
            return loss.detach()

        run.step(one, batch)


@swept("budget", (0.5,), (0.7,), kept=1)
def test_a_pass_inside_another_counts(budget: float) -> None:
    """Replays of its segments were planned as if the outer pass alone read them."""
    assert held(Balanced, loop, budget=budget).said == ""


def test_the_lowest_peak_is_the_predicted_one() -> None:
    """Parts were offered, which such a pass replays as a whole: it stood 52 % above its prediction."""
    model, batch = autockpt.apply(Balanced(), "lowest"), steps(rows=1024)[0]

    def step() -> None:
        loss_of(model(batch)).backward()
        model.zero_grad()

    for _ in range(4):
        step()
    plan = autockpt.plan_of(model)
    assert plan is not None and plan.segments
    measured_bytes = autockpt.measure(step, device="cpu").peak_bytes
    assert measured_bytes <= plan.peak_bytes <= 1.005 * measured_bytes


def test_passes_inside_others_are_told_from_those_of_the_step() -> None:
    found = autockpt.profile(Balanced(turns=3), steps()[0], loss=loss_of)
    assert found.nested_ticks == found.backward_ticks
    assert len(found.nested_ticks) == 4  # three of the hook's, and the outer one again
    assert autockpt.profile(Balanced(turns=0), steps()[0], loss=loss_of).nested_ticks == ()


def test_a_file_whose_inner_pass_is_no_pass_is_refused() -> None:
    found = autockpt.profile(Balanced(), steps()[0], loss=loss_of)
    with pytest.raises(InvalidFile, match="inside another"):
        msgspec.structs.replace(found, nested_ticks=(found.ticks - 1,))
