"""Models on the device: published architectures in a tiny size, and blocks with something of their own in forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models import TINY
from tests.device.twin import Batch, blocks
from tests.toys.chains import InTurn

__all__ = ["beside", "build", "checkpointed"]


def beside(width: int = 64) -> InTurn:
    """A model of which every second block runs in a stream of its own."""
    stream = torch.cuda.Stream()

    def run(number: int, block: nn.Module, input: Tensor) -> Any:
        if number % 2 == 0:
            return block(input)
        here = torch.cuda.current_stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            made = block(input)
        here.wait_stream(stream)
        made.record_stream(here)
        return made

    made = InTurn(blocks(6, width=width, rows=1)[0].children(), run)
    made.stream = stream  # type: ignore[assignment]
    return made


def checkpointed(width: int = 128) -> InTurn:
    """A model of which every second block is in a checkpoint of torch's."""
    return InTurn(
        blocks(6, width=width, rows=1)[0].children(),
        lambda number, block, x: checkpoint(block, x, use_reentrant=False) if number % 2 else block(x),
    )


def build(name: str) -> tuple[nn.Module, Batch]:
    """Build a tiny model and its batch, the same each time."""
    if name == "mlp":
        return blocks(8)
    if name == "pair":
        pair = {each: build(each) for each in ("gpt2", "llama")}
        return nn.ModuleDict({each: model for each, (model, _) in pair.items()}), {
            each: batch for each, (_, batch) in pair.items()
        }
    torch.manual_seed(0)
    if name in ("beside", "checkpointed"):
        model: nn.Module = beside(128) if name == "beside" else checkpointed()
        batch: Batch = {"x": torch.randn(512, 128)}
    else:
        model, batch = TINY[name]()
    return model.cuda().train(), {key: value.cuda() for key, value in batch.items()}
