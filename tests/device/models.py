"""Models on the device: published architectures in a tiny size, and blocks with something of their own in forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.models import TINY
from tests.device.twin import Batch, blocks

__all__ = ["Beside", "Checkpointed", "build"]


class Beside(nn.Module):
    """Every second block runs in a stream of its own."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks(6, width=width, rows=1)[0].children())
        self.stream = torch.cuda.Stream()

    def forward(self, input: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number % 2:
                here = torch.cuda.current_stream()
                self.stream.wait_stream(here)
                with torch.cuda.stream(self.stream):
                    made = block(input)
                here.wait_stream(self.stream)
                made.record_stream(here)
                input = made
            else:
                input = block(input)
        return input


class Checkpointed(nn.Module):
    """Every second block is in a checkpoint of torch's."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks(6, width=width, rows=1)[0].children())

    def forward(self, input: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            input = checkpoint(block, input, use_reentrant=False) if number % 2 else block(input)
        return input


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
        model: nn.Module = Beside(128) if name == "beside" else Checkpointed()
        batch: Batch = {"input": torch.randn(512, 128)}
    else:
        model, batch = TINY[name]()
    return model.cuda().train(), {key: value.cuda() for key, value in batch.items()}
