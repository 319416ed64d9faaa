"""DistributedDataParallel, plain and within a budget: `torchrun --nproc-per-node 2 examples/ddp.py`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import Row, compare, ranks


def wrap(model: nn.Module) -> nn.Module:
    """Have all ranks train a copy."""
    return DistributedDataParallel(model)


def run(device: torch.device) -> list[Row]:
    """Train both ways on this rank."""
    return compare("DistributedDataParallel", wrap, device)


if __name__ == "__main__":
    with ranks() as here:
        run(here)
