"""Tensor parallelism, plain and within a budget: `torchrun --nproc-per-node 2 examples/tensor_parallel.py`.

Every rank is given the same batch, and computes some of the heads and some of the columns of each block. All have one
and the same plan, since what is recomputed runs collectives again.
"""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from common import Row, compare, ranks


def wrap(model: nn.Module) -> nn.Module:
    """Share out the layers of each block."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(kind, (distributed.get_world_size(),))
    for block in model.blocks:
        columns = ("attention.query", "attention.key", "attention.value", "feed_forward.up")
        rows = ("attention.out", "feed_forward.down")
        by_columns, by_rows = dict.fromkeys(columns, ColwiseParallel()), dict.fromkeys(rows, RowwiseParallel())
        parallelize_module(block, mesh, {**by_columns, **by_rows})
    return model


def run(device: torch.device) -> list[Row]:
    """Train both ways on this rank."""
    return compare("Tensor parallelism", wrap, device, alike=True)


if __name__ == "__main__":
    with ranks() as here:
        run(here)
