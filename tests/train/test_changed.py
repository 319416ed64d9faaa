"""A model that changes while it trains: that it did, and what of it, is said; gradients are those of plain steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import autockpt
from tests.train.test_surprises import BATCH, stack

CHANGED = "the model changed since its last recorded step: "
RECORDING = "recording a step, since the model changed: "


def pruned(model: nn.Sequential) -> None:
    block: Any = model[1]
    prune.l1_unstructured(block[0], "weight", 0.3)


def pruned_everywhere(model: nn.Sequential) -> None:
    for block in model:
        prune.l1_unstructured(block[0], "weight", 0.3)  # type: ignore[index]


def replaced(model: nn.Sequential) -> None:
    model[2] = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32))


def longer(model: nn.Sequential) -> None:
    model.append(nn.Linear(32, 32))


def shorter(model: nn.Sequential) -> None:
    del model[5]


def losses(change: Callable[[nn.Sequential], None] | None, *, governed: bool) -> list[torch.Tensor]:
    model = stack()
    if governed:
        autockpt.apply(model, "1.3MB")
    found = []
    for step in range(8):
        if step == 4 and change is not None:
            torch.manual_seed(1)
            change(model)
        model.zero_grad()
        loss = model(BATCH).square().mean()
        loss.backward()
        found += [loss.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]
    return found


@pytest.mark.parametrize(
    ("change", "what", "warned"),
    [
        (pruned, "tensors of 1.0 (new weight_mask, weight_orig, gone weight)", True),
        (pruned_everywhere, "tensors of 0.0, 1.0 and 4 more (new weight_mask, weight_orig, gone weight)", True),
        (replaced, "replaced 2", False),
        (longer, "new 6", False),
        (shorter, "gone 5", False),
    ],
)
def test_what_changed_is_said(
    change: Callable[[nn.Sequential], None], what: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A pruned model was said to make other calls. Where modules are others the step is known to be, before it runs."""
    caplog.set_level("INFO", "autockpt")
    plain, held = losses(change, governed=False), losses(change, governed=True)
    assert all(map(torch.equal, plain, held)) and len(plain) == len(held)
    said = [record.getMessage() for record in caplog.records]
    assert f"{RECORDING}{what}" in said
    assert any(each.startswith(f"{CHANGED}{what}. ") for each in said) == warned
    assert not any("other calls" in each for each in said)


def test_a_model_that_stays_is_not_said_to_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "autockpt")
    losses(None, governed=True)
    assert not any("the model changed" in record.getMessage() for record in caplog.records)
