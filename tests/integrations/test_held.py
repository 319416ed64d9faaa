"""What all callbacks do, and the callback of transformers without a trainer around it."""

from __future__ import annotations

import copy
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from tests.toys.chains import feed_forward

transformers = pytest.importorskip("transformers")

from autockpt.integrations.transformers import TrainerBudget  # noqa: E402

STEPS = 6


def chain(blocks: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(feed_forward(32) for _ in range(blocks)))


CALLBACK: Any = transformers.TrainerCallback


class Records(CALLBACK):  # type: ignore[misc]
    """Stands for what writes logs: it has what a trainer logs."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.records.append(dict(logs))


class Loop:
    """A trainer of the least kind: it tells its callbacks what transformers' trainer tells them."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.01)
        self.state, self.control = transformers.TrainerState(), transformers.TrainerControl()
        self.written = Records()
        wrapped = SimpleNamespace(optimizer=self.optimizer)  # as accelerate wraps it
        self.callback_handler = transformers.trainer_callback.CallbackHandler(
            [transformers.trainer_callback.DefaultFlowCallback(), self.written], model, None, wrapped, None
        )

    def train(self) -> None:
        handler, args = self.callback_handler, SimpleNamespace()
        handler.on_train_begin(args, self.state, self.control)
        for number in range(STEPS):
            torch.manual_seed(number)
            loss = self.model(torch.randn(64, 32)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            logs = {"loss": loss.item()}
            self.state.log_history.append({**logs, "step": number})
            handler.on_log(args, self.state, self.control, logs)
        handler.on_train_end(args, self.state, self.control)


@pytest.mark.parametrize("added", ["first", "last"])
def test_figures_are_where_the_trainer_logs(added: str) -> None:
    model = chain(8)
    plain = Loop(copy.deepcopy(model))
    plain.train()
    loop, callback = Loop(model), TrainerBudget("min")
    if added == "first":
        assert callback.add_to(loop) is loop
    else:
        loop.callback_handler.add_callback(callback)
    loop.train()
    assert [each["loss"] for each in loop.written.records] == [each["loss"] for each in plain.written.records]
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), plain.model.parameters(), strict=True))
    last = loop.state.log_history[-1]
    assert last["autockpt/budget_bytes"] >= last["autockpt/peak_bytes"] > 0 and last["autockpt/overhead"] > 0
    assert ("autockpt/peak_bytes" in loop.written.records[-1]) == (added == "first")
    assert "autockpt/peak_bytes" not in loop.state.log_history[0]  # there is no plan yet
    assert autockpt.plan_of(model) is None  # taken off at the end


def test_a_training_that_begins_again_has_a_plan_again() -> None:
    """A trainer that looks for a batch size that fits begins anew, and does not end before."""
    loop, callback = Loop(chain(8)), TrainerBudget(max_overhead=0.3)
    callback.add_to(loop)
    loop.callback_handler.on_train_begin(SimpleNamespace(), loop.state, loop.control)
    loop.train()
    assert "autockpt/peak_bytes" in loop.written.records[-1]


def test_a_model_that_has_a_plan_is_refused() -> None:
    model = autockpt.apply(chain(8), max_overhead=0.3)
    loop = Loop(model)
    TrainerBudget("1GB").add_to(loop)
    with pytest.raises(autockpt.NotApplicable, match=r"already has a budget.*autockpt\.remove"):
        loop.train()


def test_a_callback_is_added_to_a_trainer() -> None:
    with pytest.raises(autockpt.NotApplicable, match=r"add_to takes a trainer.*this is a Sequential"):
        TrainerBudget("1GB").add_to(chain(2))


@pytest.mark.parametrize("budget", ["8 gigs", "24", None, -3])
def test_a_slip_shows_where_it_is_made(budget: Any) -> None:
    with pytest.raises(autockpt.BudgetError):
        TrainerBudget(budget)


def test_what_apply_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="overheads"):
        TrainerBudget("8GB", overheads=0.3)
    with pytest.raises(autockpt.BudgetError, match="only one"):
        TrainerBudget("8GB", plan="plan.json")


def test_nothing_of_a_framework_is_imported_by_others() -> None:
    code = "import sys, autockpt.integrations; sys.exit(bool({'transformers', 'lightning'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True)
