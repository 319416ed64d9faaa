"""A network whose parameters are frozen, and that gradients pass through: what it saves is planned as any other's."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import NotApplicable
from tests.loops.models import loss_of, network
from tests.loops.twin import Run, held, steps


def frozen(*, training: bool) -> nn.Module:
    model = network().requires_grad_(False)
    # `held` puts it in training mode; what a loop sets then is the loop's own.
    model.register_forward_pre_hook(lambda module, _: module.train(training) and None)
    return model


def through(run: Run, batch: Tensor, before: nn.Linear, optimizer: torch.optim.Optimizer) -> Tensor:
    """A step of textual inversion, of a ControlNet, of a perceptual loss: what trains lies before the network."""
    loss = loss_of(run.model(before(batch)))
    loss.backward()
    for name, parameter in before.named_parameters():
        assert parameter.grad is not None
        run.note(f"gradient of {name} in step {len(run.planned)}", parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def loop(run: Run) -> None:
    torch.manual_seed(4)
    before = nn.Linear(32, 32)  # of batches by `steps`
    optimizer = torch.optim.SGD(before.parameters(), lr=0.1)
    for batch in steps():
        run.step(partial(through, run, batch, before, optimizer), batch)


def nothing(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_gradients_pass_through_a_frozen_network(training: bool) -> None:
    found = held(partial(frozen, training=training), loop, optimizer=nothing, planned_by=5)
    assert found.said == ""


def test_of_inputs_that_require_a_gradient_a_frozen_network_is_profiled() -> None:
    model, batch = network().requires_grad_(False), steps()[0]
    found = autockpt.profile(model, batch.clone().requires_grad_(True))
    assert autockpt.solve(found, "lowest").segments
    with pytest.raises(NotApplicable, match="no parameter that requires a gradient, and no input does"):
        autockpt.profile(model, batch)
    with pytest.raises(NotApplicable, match="no parameter that requires a gradient, and no input does"):
        autockpt.apply(model, "1MB", inputs=batch)


def test_what_flows_through_no_frozen_network_is_no_step() -> None:
    """A validation, features that are taken from it: no input requires a gradient."""
    model = autockpt.apply(network().requires_grad_(False), budget="lowest")
    for batch in steps():
        model(batch)
    assert autockpt.plan_of(model) is None
