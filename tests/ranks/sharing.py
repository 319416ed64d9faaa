"""What two ranks do that share layers, with boundaries that wait in parts; see `works`."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autockpt
from tests.doors import ShardStash, governor_of, torch_private

from .models import Shared, bits, loss_of, standing_bytes, step, tokens, writer
from .quiet import group_of_all

DEPTH, WIDTH, ROWS = 6, 32, 16
BOUNDARY_BYTES = 4 * ROWS * 64 * WIDTH
FAST = "shard@100GB/s"
TENSORS = Shared(by="tp")


def model_of(shared: Shared = TENSORS) -> nn.Module:
    """Activations are large beside weights here."""
    return shared.wrap(writer(depth=DEPTH, width=WIDTH), [])


def batch_of(number: int) -> torch.Tensor:
    return tokens(0, number, rows=ROWS)


def by_hand(*, offload: str | None) -> autockpt.Plan:
    """Recompute each block, from a boundary that waits or stays."""
    where = None if offload is None else autockpt.Offload.of(offload)
    moves: Any = None if offload is None else "boundary"
    segments = [autockpt.Segment(calls=(f"blocks.{number}#0",), offload=moves) for number in range(DEPTH)]
    return autockpt.Plan(segments=tuple(segments), offload=where)


def trained(*, shared: Shared = TENSORS, steps: int = 4, **asked: Any) -> dict[str, Any]:
    """Train plainly where nothing is asked, or as `apply` is asked to."""
    gc.freeze()
    model = model_of(shared)
    if asked:
        autockpt.apply(model, **asked)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    said: list[dict[str, str]] = []
    peaks: list[int] = []
    for number in range(steps):
        batch = batch_of(number)
        gc.collect()
        stood = standing_bytes(model, optimizer, [batch])
        found = autockpt.measure(lambda: said.append(step(model, optimizer, [batch], 100 + number)))  # noqa: B023
        peaks.append(stood + found.step_bytes)
    governor: Any = governor_of(model)
    plans = [] if governor is None else [made.plan for made in governor.account.plans]
    return {"told": said, "peaks": peaks, "plans": plans, "plan": plans[-1] if plans else None}


def held(rank: int, *, quiet: bool) -> dict[str, Any]:
    """Tell what a graph holds after forward, and what training comes to: plainly, from boundaries, and from parts."""
    gc.freeze()
    bytes_held: list[int] = []
    plain = trained(shared=Shared(by="tp", quiet=quiet), steps=2)["told"]
    same = []
    for offload in (None, "shard"):
        model = autockpt.apply(model_of(Shared(by="tp", quiet=quiet)), plan=by_hand(offload=offload), check="never")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        same.append([step(model, optimizer, [batch_of(number)], 100 + number) for number in range(2)] == plain)
        kept: list[torch.Tensor] = []
        batch = batch_of(2)
        gc.collect()
        found = autockpt.measure(lambda: kept.append(loss_of(model, batch)))  # noqa: B023
        bytes_held.append(found.end_bytes - found.start_bytes)
    return {"held": bytes_held, "same": same}


class Fails(RuntimeError):
    pass


def _gradients(model: nn.Module) -> list[str]:
    return [bits(each.grad) for each in model.parameters()]


def _fail(gradient: torch.Tensor) -> None:
    raise Fails


def backwards(rank: int) -> dict[str, Any]:
    """Go back twice through one graph; and once through one in whose backward both ranks raise an error."""
    found = []
    for plan in (None, by_hand(offload="shard")):
        model: Any = model_of()
        if plan is not None:
            autockpt.apply(model, plan=plan)
        told = []
        for number in range(3):
            torch.manual_seed(number)
            model.zero_grad()
            loss = loss_of(model, batch_of(number))
            if number == 1:
                hook = model.blocks[DEPTH // 2].up.weight.register_hook(_fail)
                try:
                    loss.backward()
                except Fails:
                    told.append(["failed"])
                hook.remove()
                continue
            loss.backward(retain_graph=True)
            told.append(_gradients(model))
            loss.backward()
            told.append(_gradients(model))
            del loss
        found.append(told)
    return {"same": found[0] == found[1], "failed": ["failed"] in found[1]}


def chosen(rank: int) -> dict[str, Any]:
    """Ask for the lowest peak with parts and without, and for a budget in between."""
    plain = trained()["told"]
    stays, parts = trained(budget="lowest", seconds=0.5), trained(budget="lowest", seconds=0.5, offload=FAST)
    budget = (parts["plan"].peak_bytes + stays["plan"].peak_bytes) // 2
    found = {"stays": stays, "parts": parts, "between": trained(budget=budget, seconds=0.5, offload=FAST)}
    for each in found.values():
        each["same"] = each.pop("told") == plain
    return {**found, "budget": budget}


def unlike(rank: int) -> dict[str, Any]:
    """Have ranks draw other random numbers, so that they have other boundaries: in the first step, or later ones."""
    errors, peaks = [], []
    for first in (0, 1):
        model = autockpt.apply(model_of(), plan=by_hand(offload="shard"), check="never")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        try:
            for number in range(2):
                step(model, optimizer, [batch_of(number)], 100 + number + (rank if number >= first else 0))
                peaks.append(number)
        except autockpt.ReplayError as error:
            errors.append(str(error))
    return {"errors": errors, "steps": peaks}


def diverging(rank: int, *, at: int) -> dict[str, Any]:
    """Have ranks draw other random numbers in one step, the first under a plan or a later one; then train on."""
    model = autockpt.apply(model_of(), "lowest", offload=FAST, seconds=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    errors, parts, plan = [], [], None
    for number in range(at + 2):
        try:
            step(model, optimizer, [batch_of(number)], 100 + number + (rank if number == at else 0))
        except autockpt.ReplayError as error:
            errors.append((number, str(error)))
        plan = autockpt.plan_of(model)
        parts.append(plan is not None and any(segment.offload for segment in plan.segments))
    assert plan is not None
    return {"errors": errors, "parts": parts, "refused": [each.call for each in plan.refused], "plan": plan}


def not_alike(rank: int) -> dict[str, Any]:
    """Share sequences as well: then no rank has what another has."""
    found = trained(budget="lowest", seconds=0.5, steps=3, offload="shard", shared=Shared(by="sp"))
    noted = any("no boundary was seen to be the same" in note for plan in found["plans"] for note in plan.notes)
    same = found["told"] == trained(steps=3, shared=Shared(by="sp"))["told"]
    return {"same": same, "plan": found["plan"], "noted": noted}


def _said(model: nn.Module, **asked: Any) -> str:
    try:
        autockpt.apply(model, **asked)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for number in range(3):
            step(model, optimizer, [batch_of(number)], number)
    except autockpt.NotApplicable as error:
        return str(error)
    return ""


def refused(rank: int) -> dict[str, str]:
    """Ask for parts where nobody has them; tell the errors."""
    group_of_all([], quiet=True)
    another = autockpt.Plan(
        segments=by_hand(offload="shard").segments,
        offload=autockpt.Offload(where="shard", write_rate=1e9, read_rate=1e9, ranks=4),
    )
    return {
        "ddp": _said(DistributedDataParallel(writer(depth=1, width=WIDTH)), budget="1GB", offload="shard"),
        "fsdp": _said(Shared(by="fsdp").wrap(writer(depth=1, width=WIDTH), []), budget="1GB", offload="shard"),
        "whole": _said(writer(depth=DEPTH, width=WIDTH), plan=by_hand(offload="shard")),
        "later": _said(writer(depth=1, width=WIDTH), budget="1GB", offload="shard"),
        "another group": _said(model_of(), budget="1GB", offload=autockpt.Offload.of("shard", group="nobody")),
        "other ranks": _said(model_of(), plan=another),
    }


def rows(rank: int, *, sizes: Sequence[int]) -> list[bool]:
    """Put rows of bytes, and get them back."""
    group = torch_private.name_of_group(torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
    stash, found = ShardStash(group), []
    for size in sizes:
        row = torch.arange(size, dtype=torch.uint8)
        token, back = stash.put(row), torch.zeros(size, dtype=torch.uint8)
        stash.get(token, back)
        stash.free(token)
        found.append(torch.equal(row, back))
    return found


class Same(torch.autograd.Function):
    """The same on all ranks; its gradient is the sum of theirs. As Megatron has it."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _summed(gradient)


class Sum(torch.autograd.Function):
    """The sum of what ranks have; its gradient is the same on all."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
        return _summed(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _summed(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.clone()
    torch.distributed.all_reduce(found)
    return found


class Feeds(nn.Module):
    """A feed-forward layer of which each rank has some columns, and the rows behind them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = nn.functional.gelu(self.up(Same.apply(self.norm(hidden))))  # type: ignore[no-untyped-call]
        return hidden + nn.functional.dropout(Sum.apply(self.down(wide)), 0.1)  # type: ignore[no-untyped-call]


class Chain(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(width, width), nn.ModuleList(Feeds(width) for _ in range(depth))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.first(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


def own_collectives(rank: int) -> dict[str, Any]:
    """Train a model whose own code runs collectives: plainly, from boundaries, and from parts, by plans by hand."""
    group = torch.distributed.distributed_c10d._get_default_group()
    told = []
    for offload in ("plain", None, autockpt.Offload.of("shard", group=group)):
        torch.manual_seed(rank)
        model = Chain(64, 3)
        for parameter in model.first.parameters():
            torch.distributed.broadcast(parameter.data, 0)
        moves: Any = None if offload is None else "boundary"
        segments = tuple(autockpt.Segment(calls=(f"blocks.{number}#0",), offload=moves) for number in range(3))
        if offload != "plain":
            autockpt.apply(model, plan=autockpt.Plan(segments=segments, offload=offload), check="always")  # type: ignore[arg-type]
        for number in range(2):
            torch.manual_seed(number)
            model.zero_grad()
            loss = model(torch.randn(32, 64)).square().mean()
            loss.backward()
            told.append(_gradients(model))
    return {"same": told[:2] == told[2:4] == told[4:]}


def four(rank: int) -> dict[str, Any]:
    """Share layers over two ranks, and shards of them over two copies."""
    shared = Shared(by="fsdp over tp")
    plain = trained(shared=shared)["told"]
    found = {
        "stays": trained(budget="lowest", seconds=0.5, shared=shared),
        "parts": trained(budget="lowest", seconds=0.5, offload=FAST, shared=shared),
    }
    return {**found, "same": all(each.pop("told") == plain for each in found.values())}
