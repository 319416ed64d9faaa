"""`apply` on models that are compiled as a whole, by `aot_eager`."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import BudgetError, Infeasible, NotApplicable
from tests.compiled.models import MODELS, language, outside
from tests.compiled.steps import static_bytes, trained
from tests.doors import compiled_hold_of

pytestmark = pytest.mark.filterwarnings(
    # Dynamo reads it of what compiled code is given, in plain models too, and hides the warning where it is no error.
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)


def in_place(model: nn.Module) -> Any:
    model.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize(
    ("way", "planned"),
    [
        (outside, "before"),
        (in_place, "in its first step"),
        pytest.param(outside, "in its first step", marks=pytest.mark.sweep),
        pytest.param(in_place, "before", marks=pytest.mark.sweep),
    ],
)
def test_every_step_of_a_compiled_model_keeps_to_the_budget(way: Any, planned: str) -> None:
    """The first one too, in which the code is compiled."""
    torch.compiler.reset()
    model, batch = MODELS["three graphs"]()
    plain, plain_left = trained(way(copy.deepcopy(model)), batch)
    torch.compiler.reset()
    static, budget = static_bytes(model, batch), int(0.8 * plain[-1])
    compiled = autockpt.apply(way(model), static + budget, inputs=batch if planned == "before" else None)
    sizes, left = trained(compiled, batch)
    hold = compiled_hold_of(compiled)
    assert hold is not None and hold.plan is not None
    assert sizes[-1] == hold.plan.peak_bytes - static <= budget
    assert max(sizes) <= budget
    assert all(torch.equal(one, other) for one, other in zip(left, plain_left, strict=True))
    assert autockpt.plan_of(compiled) is hold.plan
    autockpt.remove(compiled)
    assert autockpt.plan_of(compiled) is None
    after, _ = trained(compiled, batch)
    assert after[-1] == plain[-1]


def test_a_budget_that_is_too_low_is_told_with_the_lowest_that_is_not() -> None:
    torch.compiler.reset()
    model, batch = language()
    compiled = outside(model)
    with pytest.raises(Infeasible) as told:
        autockpt.apply(compiled, static_bytes(model, batch) + 100, inputs=batch)
    assert autockpt.plan_of(compiled) is None
    autockpt.apply(compiled, told.value.minimum_bytes, inputs=batch)
    sizes, _ = trained(compiled, batch, 2)
    assert max(sizes) + static_bytes(model, batch) <= told.value.minimum_bytes


@pytest.mark.sweep
def test_a_second_optimizer_step_is_planned_with_its_state() -> None:
    """The state that the first step makes stands from then on: a plan that has no room for it is made anew."""
    torch.compiler.reset()
    model, batch = language()
    compiled = outside(model)
    plain, _ = trained(compiled, batch, 2)
    static = static_bytes(model, batch)
    state = 2 * sum(each.untyped_storage().nbytes() for each in model.parameters())
    budget = static + plain[-1] + state // 2
    autockpt.apply(compiled, budget, seconds=1.0)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    standing = static
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        standing = static + sum(tensor.nbytes for each in optimizer.state.values() for tensor in each.values())
        assert autockpt.measure(lambda: compiled(*batch).backward()).step_bytes + standing <= budget
        optimizer.step()
    assert standing > static + state - 1


@pytest.mark.sweep
def test_one_graph_that_is_called_twice_keeps_to_the_budget() -> None:
    """Its calls are cut alike, as the plan counts. The loss of what is handed out is the caller's own."""
    torch.compiler.reset()
    model, batch = MODELS["looped"]()
    plain, plain_left = trained(Summed(outside(copy.deepcopy(model))), batch)
    torch.compiler.reset()
    static = static_bytes(model, batch)
    budget = int(0.85 * plain[-1])
    compiled = autockpt.apply(outside(model), static + budget)
    sizes, left = trained(Summed(compiled), batch)
    assert max(sizes) <= budget
    assert all(torch.equal(one, other) for one, other in zip(left, plain_left, strict=True))


class Summed(nn.Module):
    """A caller with a loss of its own."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.model(*batch).square().mean()
        return loss


@pytest.mark.parametrize(("kind", "words"), [("part", "parts run outside of its graphs.*Addmm"), ("value", "values")])
def test_what_no_graph_shows_is_refused(kind: str, words: str) -> None:
    torch.compiler.reset()
    compiled = autockpt.apply(outside(Partly() if kind == "part" else Values()), "1GB")
    with pytest.raises(NotApplicable, match=words):
        compiled(torch.ones(2, 4))
    assert autockpt.plan_of(compiled) is None


class Partly(nn.Module):
    """A break in a loop: only what the loop calls is compiled, and the rest of forward is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.weight, self.bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.first(x)
            torch._dynamo.graph_break()
        return torch.addmm(self.bias, x, self.weight).sum()


class Values(nn.Module):
    """It branches on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.sum() if y.sum().item() > 0 else -y.sum()


def test_what_does_not_train_runs_as_it_was_compiled(caplog: pytest.LogCaptureFixture) -> None:
    torch.compiler.reset()
    model, batch = language()
    compiled = autockpt.apply(outside(model), "1GB")
    with torch.no_grad(), caplog.at_level(logging.INFO, "autockpt"):
        expected = model.eval()(*batch)
        assert torch.equal(compiled(*batch), expected)
    assert not caplog.records
    copied = copy.deepcopy(compiled)
    assert autockpt.plan_of(copied) is None
    assert b"autockpt" not in pickle.dumps(compiled)


@pytest.mark.parametrize(
    ("compile_options", "asked", "words"),
    [
        ({"backend": "aot_eager"}, {"max_overhead": 0.1}, "Leave max_overhead"),
        ({"backend": "aot_eager"}, {"budget": "1GB", "keep": "blocks.0"}, "Leave max_overhead=, keep="),
        ({"backend": "eager"}, {"budget": "1GB"}, "compiled as a whole"),
    ],
)
def test_what_cannot_be_asked_is_refused(compile_options: Any, asked: Any, words: str) -> None:
    compiled: Any = torch.compile(language()[0], **compile_options)
    with pytest.raises((NotApplicable, BudgetError), match=words):
        autockpt.apply(compiled, **asked)


@pytest.mark.sweep
def test_who_does_not_compile_loads_none_of_it() -> None:
    code = """
import sys, torch, autockpt
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
autockpt.apply(model, "1GB", inputs=torch.ones(2, 4), loss=torch.sum)
model(torch.ones(2, 4)).sum().backward()
autockpt.remove(model)
loaded = [name.split(".") for name in sys.modules if name.startswith("autockpt.")]
assert not [name for name in loaded if name[1] == "_compiled" or name[-1] in ("compiling", "inductor")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
