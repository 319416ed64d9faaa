"""A small GPT-2 as one of two ranks has it: built for a rank that is alone, and trained on two that are there."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

import autockpt

from .models import Gathers, Scatters, Shared, in_parallel, loss_of, standing_bytes, writer
from .quiet import group_of_all

STEPS = 3


class Told(nn.Module):
    """The other writer, whose layers can be shared, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = writer()

    def forward(self, tokens: Tensor) -> Tensor:
        return loss_of(self.inner, tokens)


class Writer(nn.Module):
    """GPT-2 that returns its loss."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=512, n_positions=64, n_embd=width, n_layer=depth, n_head=4, use_cache=False)
        self.gpt = GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.gpt(tokens, labels=tokens).loss  # type: ignore[no-any-return]


def batch(number: int = 0, rows: int = 8) -> Tensor:
    return torch.randint(0, 128, (rows, 64), generator=torch.Generator().manual_seed(number))


def shared(by: str, *, quiet: bool) -> nn.Module:
    """Build it, wrapped or sharded by the user's own code, as `by` says.

    ``ddp``, also with ``views`` of gradients in its buckets; ``fsdp2``, also in ``bf16``, or with weights that
    are ``kept`` whole from forward to backward; ``tp`` and ``sp``, and ``fsdp over tp`` on four ranks.
    """
    if by in ("tp", "sp", "fsdp over tp"):
        told = Told()
        if quiet or by == "fsdp over tp":
            Shared(by=by, quiet=quiet).wrap(told.inner, [])
        else:
            in_parallel(told.inner, init_device_mesh("cpu", (2,)), sequences=by == "sp")
        return told
    model = Writer()
    if by.startswith("ddp"):
        group = group_of_all([], quiet=True) if quiet else None
        return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view="views" in by)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if "bf16" in by else MixedPrecisionPolicy()
    # A mesh with a name of its own: caches of DTensor take equal ones for one, and others share layers by one without.
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shards",)) if quiet else None
    for unit in (*model.gpt.transformer.h, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=False if "kept" in by else None)
        if quiet:
            unit.set_custom_all_gather(Gathers([]))
            unit.set_custom_reduce_scatter(Scatters([]))
    return model


def peaks(rank: int, *, by: str, plan: str | None = None) -> list[int]:
    """Train plainly or under a plan; return how high each step went."""
    gc.freeze()
    model = shared(by, quiet=True)
    if plan is not None:
        inner: Any = model.module if by.startswith("ddp") else model
        autockpt.apply(inner, plan=autockpt.Plan.load(plan))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(batch(number)).backward()
        optimizer.step()

    for number in range(STEPS):
        given = batch(number)
        gc.collect()
        stood = standing_bytes(model, optimizer, [given])
        found.append(stood + autockpt.measure(lambda: step(number)).step_bytes)  # noqa: B023
    return found
