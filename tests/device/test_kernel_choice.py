"""cuDNN tries which kernel is fastest, in each thread anew: forward and replay must not choose apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.toys.told import Told, with_linear

seen: list[tuple[bool, bool]] = []


def notes(own: Told, x: Tensor) -> Any:
    """Notes whether kernels are tried, and whether that is asked in backward."""
    seen.append((autockpt.is_recomputing(), torch.backends.cudnn.benchmark))
    return own.linear(x).tanh()


@pytest.fixture(autouse=True)
def trying() -> Iterator[None]:
    seen.clear()
    torch.backends.cudnn.benchmark = True
    yield
    torch.backends.cudnn.benchmark = False


def test_kernels_are_not_tried_in_calls_that_are_recomputed_nor_in_their_replays() -> None:
    model = autockpt.apply(
        nn.Sequential(*(with_linear(notes) for _ in range(3))), plan=autockpt.Plan.of(["1"]), check="never"
    ).cuda()
    outputs = model(torch.randn(4, 8).cuda())
    assert torch.backends.cudnn.benchmark
    outputs.sum().backward()
    assert torch.backends.cudnn.benchmark
    assert seen == [(False, True), (False, False), (False, True), (True, False)]


def test_they_are_tried_again_after_a_call_that_raises() -> None:
    def fails(own: Told, x: Tensor) -> Tensor:
        raise ValueError("no")

    model = autockpt.apply(nn.Sequential(nn.Linear(8, 8), Told(fails)), plan=autockpt.Plan.of(["1"]))
    with pytest.raises(ValueError, match="no"):
        model(torch.randn(4, 8))
    assert torch.backends.cudnn.benchmark
