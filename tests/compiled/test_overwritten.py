"""Steps that overwrite what a replay would read, and loops that use a graph in other ways than once."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import CompiledPlan
from tests.compiled.models import outside
from tests.compiled.steps import trained
from tests.doors import prepare_joint_graphs, trace_joint_graphs

pytestmark = pytest.mark.filterwarnings(
    # Dynamo reads it of what compiled code is given, in plain models too, and hides the warning where it is no error.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)


class Halving(nn.Module):
    """It halves its batch and moves an average after it has read both; where it `breaks`, in another graph."""

    average: Tensor

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("average", torch.full((16,), 0.5))
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        y = self.narrow(torch.sin(self.wide(x.clone() * self.average.sin())))
        if self.breaks:
            torch._dynamo.graph_break()
        x.mul_(0.5)
        self.average.lerp_(x.mean(0), 0.5)
        loss: Tensor = (y.sin() * x.exp()).square().mean()
        return loss


@pytest.mark.parametrize("breaks", [False, True])
def test_replays_do_not_read_what_forward_has_overwritten(breaks: bool) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model, batch = Halving(breaks), torch.randn(64, 16)
    other = copy.deepcopy(model)
    plain, plain_left = trained(outside(other), (batch.clone(),))
    torch.compiler.reset()
    sizes, left = trained(autockpt.apply(outside(model), "min", seconds=1.0), (batch.clone(),))
    assert sizes[-1] < plain[-1]
    assert torch.equal(model.average, other.average)
    assert all(torch.equal(one, two) for one, two in zip(left, plain_left, strict=True))


class Normed(nn.Module):
    """Batch norms, whose averages move in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 16)
        self.one, self.two = nn.BatchNorm1d(64), nn.BatchNorm1d(64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.second(self.one(self.first(x)).relu())).relu()
        loss: Tensor = self.last(y).square().mean()
        return loss


def test_batch_norms_run_again_and_their_averages_move_once() -> None:
    """What they return does not depend on the averages that forward has moved, nor does their backward in training."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, batch = Normed(), (torch.randn(64, 16),)
    other = copy.deepcopy(model)
    plain, plain_left = trained(outside(other), batch)
    torch.compiler.reset()
    compiled = autockpt.apply(outside(model), "min", inputs=batch, seconds=1.0)
    plan = autockpt.plan_of(compiled)
    assert isinstance(plan, CompiledPlan) and {"one", "two"} & {name for name, _ in plan.modules}
    sizes, left = trained(compiled, batch)
    assert sizes[-1] < plain[-1]
    assert all(torch.equal(one, two) for one, two in zip(left, plain_left, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(model.buffers(), other.buffers(), strict=True))


def test_a_part_of_forward_runs_its_batch_norm_again() -> None:
    """Only forward's own copies at its end read the new averages, and they run once: the norm leaves nothing behind."""
    torch.compiler.reset()
    prepared = prepare_joint_graphs(*trace_joint_graphs(Normed(), (torch.ones(64, 16),)))
    forward, stated = prepared.step.forward, prepared.stated
    norms = {i for i, each in enumerate(forward) if "batch_norm" in each.name}
    ends = {each.stop for each, again in zip(stated.problem.candidates, stated.again, strict=True) if again & norms}
    assert len(norms) == 2 and min(ends) <= len(forward) // 2


class Parted(nn.Module):
    """It returns two results."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y: Tensor = self.narrow(torch.sin(self.wide(x)))
        return y, y.square().mean()


def test_a_batch_that_another_model_made_is_no_part_of_the_graphs() -> None:
    """As a generator's is for its critic."""
    torch.compiler.reset()
    maker = nn.Linear(16, 16)
    compiled = autockpt.apply(outside(Parted()), "1GB")
    compiled(maker(torch.ones(8, 16)))[1].backward()
    assert maker.weight.grad is not None and autockpt.plan_of(compiled) is not None


def test_a_backward_that_keeps_its_graph_is_told_and_one_through_any_result_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.compiler.reset()
    compiled, batch = autockpt.apply(outside(Parted()), "1GB"), torch.ones(8, 16)
    with caplog.at_level(logging.WARNING, "autockpt"):
        held = compiled(batch)
        held[1].backward()  # and the first result is still held
        compiled(batch)
        assert not [each for each in caplog.records if each.name == "autockpt"]
        torch.compiler.reset()  # torch itself lets no graph keep what it once gave away
        autockpt.apply(outside(Parted()), "1GB")(batch)[1].backward(retain_graph=True)
    assert "retain_graph=True" in caplog.text


def test_steps_of_what_is_compiled_around_a_model_with_a_budget_are_told_to_have_no_plan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.compiler.reset()
    inner = autockpt.apply(outside(Parted()), "1GB")
    around = nn.Sequential(nn.Linear(16, 16), inner)
    outer, optimizer = outside(around), torch.optim.SGD(around.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, "autockpt"):
        for _ in range(3):
            outer(torch.ones(8, 16))[1].backward()
            optimizer.step()
    assert [each.message for each in caplog.records if "apply to what is compiled outermost" in each.message.lower()]
    assert autockpt.report(inner).steps == 0
