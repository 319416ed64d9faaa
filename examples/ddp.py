"""DistributedDataParallel, plain and within a budget: `torchrun --nproc-per-node 2 examples/ddp.py`."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import compare


def wrap(model: nn.Module) -> nn.Module:
    """Have all ranks train a copy."""
    return DistributedDataParallel(model)


if __name__ == "__main__":
    compare("DistributedDataParallel", wrap)
