"""FSDP2 (`fully_shard`), plain and within a budget: `torchrun --nproc-per-node 2 examples/fsdp2.py`."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from common import Row, compare, ranks


def wrap(model: nn.Module) -> nn.Module:
    """Shard each block, and the rest."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(kind, (distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def run(device: torch.device) -> list[Row]:
    """Train both ways on this rank."""
    return compare("FSDP2", wrap, device)


if __name__ == "__main__":
    with ranks() as here:
        run(here)
