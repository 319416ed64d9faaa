"""Models that are compiled, shared by two ranks and held to a budget, in any order; each beside its plain twin."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import autockpt
from tests.compiled.models import Narrow
from tests.doors import compiled_hold_of

from .models import Shared, bits, loss_of, standing_bytes, tokens, writer
from .quiet import QuietGroup, group_of_all
from .works import agreed

SMALL_MB = 0.004
"""Buckets of so many MB, where the compiler shall cut the graph of `Narrow` at one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to compile a model, to share it, and to apply a budget.

    Attributes:
        order: what is done, in this order: ``compile``, ``compile in place``, ``compile blocks``, ``replace blocks`` by
            compiled ones, ``wrap`` (by DistributedDataParallel), ``shard`` (blocks and the whole, by FSDP2), ``apply``.
        adam: whether AdamW trains it; else plain SGD does.
        views: whether gradients lie in the buckets of DistributedDataParallel.
        cut: whether buckets are so small that the compiler cuts the graph between them.
    """

    order: tuple[str, ...]
    adam: bool = False
    views: bool = False
    cut: bool = False


@dataclass(slots=True)
class Built:
    """A model as the loop calls it, the wrapper around it or it itself, and what a budget was asked for."""

    called: Any
    shared: Any
    applied: Any = None


def built(way: Way, model: Any, budget: int | None, **asked: Any) -> Built:
    """Do what a way says; without a budget all but applying one."""
    found = Built(model, model)
    for what in way.order:
        if what == "compile":
            found.called = torch.compile(found.called, backend="aot_eager")
        elif what == "compile in place":
            found.called.compile(backend="aot_eager")
        elif what == "compile blocks":
            for block in model.blocks:
                block.compile(backend="aot_eager")
        elif what == "replace blocks":
            for number, block in enumerate(model.blocks):
                model.blocks[number] = torch.compile(block, backend="aot_eager")
        elif what == "wrap":
            more: dict[str, Any] = {"bucket_cap_mb": SMALL_MB} if way.cut else {}
            group = group_of_all([], quiet=True)
            found.called = found.shared = DistributedDataParallel(
                found.called, process_group=group, gradient_as_bucket_view=way.views, **more
            )
        elif what == "shard":
            Shared(by="fsdp").wrap(model, [])
        elif budget is not None:
            found.applied = autockpt.apply(found.called, budget, seconds=0.2, **asked)
    return found


def own_batch(rank: int, rows: int = 512) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(rank))


def batches_of(model: nn.Module, rank: int, steps: int) -> list[Tensor]:
    return [own_batch(rank) if isinstance(model, Narrow) else tokens(rank, number) for number in range(steps)]


def loss_from(called: Any, batch: Tensor) -> Any:
    """Return the loss; `Narrow` returns its own."""
    return loss_of(called, batch) if batch.dtype is torch.int64 else called(batch)


def trained(model: nn.Module, found: Built, way: Way, batches: Sequence[Tensor]) -> tuple[list[Any], list[int]]:
    """Train; tell the bits of each step's loss and gradients, and its peak, with what stood before."""
    parameters = list(model.parameters())
    optimizer: Any = torch.optim.AdamW(parameters) if way.adam else torch.optim.SGD(parameters, lr=0.01)
    said, peaks = list[Any](), list[int]()

    def step(batch: Tensor) -> None:
        torch.manual_seed(7)
        optimizer.zero_grad()
        loss = loss_from(found.called, batch)
        loss.backward()
        said.append([bits(loss), *(bits(each.grad) for each in parameters)])
        del loss
        optimizer.step()

    for batch in batches:
        gc.collect()
        stood = standing_bytes(found.shared, optimizer, [batch])
        peaks.append(stood + autockpt.measure(lambda batch=batch: step(batch)).step_bytes)  # type: ignore[misc]
    return said, peaks


@contextmanager
def warned() -> Iterator[list[str]]:
    """Note what the library warns of inside the block."""
    found = list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("autockpt")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


@contextmanager
def compiling(*, cut: bool = False) -> Iterator[None]:
    """Compile anew inside the block, and nothing of the groups that are written in Python; first buckets may be small.

    Compiled code is dropped at the end, too: the same ranks go on to other tests.
    """
    torch.compiler.reset()
    never: Any = torch.compiler.disable(QuietGroup.broadcast)
    distributed: Any = torch.distributed
    first_bytes = 4096 if cut else distributed._DEFAULT_FIRST_BUCKET_BYTES
    small = mock.patch.object(distributed, "_DEFAULT_FIRST_BUCKET_BYTES", first_bytes)
    with mock.patch.object(QuietGroup, "broadcast", never), small:
        yield
    torch.compiler.reset()


def kept(rank: int, *, ways: Sequence[Way], share: float, steps: int = 3) -> list[dict[str, Any]]:
    """Train in each way, plainly and under a budget that leaves a share of what the plain step adds."""
    gc.freeze()
    return [_kept(rank, way, share, steps) for way in ways]


def _kept(rank: int, way: Way, share: float, steps: int) -> dict[str, Any]:
    def new() -> nn.Module:
        torch.manual_seed(0)
        return writer(width=32, depth=2) if {"compile blocks", "replace blocks"} & {*way.order} else Narrow()

    with compiling(cut=way.cut), warned() as words:
        model = new()
        batches = batches_of(model, rank, steps)
        plain = built(way, model, None)
        told, peaks = trained(model, plain, way, batches)
        start = standing_bytes(plain.shared, torch.optim.SGD(model.parameters()), batches[-1:])
        budget = agreed(int(start + share * (peaks[-1] - start)))
        torch.compiler.reset()
        del plain  # it would stand beside the other model
        model = new()
        found = built(way, model, budget)
        again, planned_peaks = trained(model, found, way, batches)
        held = compiled_hold_of(found.called if found.applied is None else _inside(found.applied))
        return {
            "same": [one == other for one, other in zip(told, again, strict=True)],
            "peaks": planned_peaks,
            "plain": peaks[-1],
            "budget": budget,
            "plan": autockpt.plan_of(found.applied),
            "report": str(autockpt.report(found.applied)),
            "held": held is not None,
            "warned": [*words],
        }


def _inside(applied: Any) -> Any:
    compiled = isinstance(applied, DistributedDataParallel) and compiled_hold_of(applied) is None
    return applied.module if compiled else applied


def refused(rank: int) -> dict[str, tuple[str, str, bool]]:
    """Try what is refused; return each time the error, its words, and whether a plain step went on after it."""
    wrapped = Way(order=("compile", "wrap", "apply"))
    return {
        "sharded, compiled, applied": _refused(rank, ("shard", "compile in place", "apply")),
        "compiled, sharded, applied": _refused(rank, ("compile", "shard", "apply")),
        "compiled, applied, sharded": _refused(rank, ("compile in place", "apply", "shard")),
        "a batch": _tried(rank, wrapped, 10**9, inputs=own_batch(rank)),
        "strict": _tried(rank, wrapped, 10**9, strict=True),
        "one rank alone": _tried(rank, wrapped, 300_000, rows=64 if rank == 0 else 2048),
        "other budgets": _tried(rank, wrapped, 10**9 + rank),
    }


def _refused(rank: int, order: Sequence[str]) -> tuple[str, str, bool]:
    """Shard a model that is compiled as a whole, before a budget is asked for or after."""
    with compiling():
        called: Any = Narrow()
        try:
            for what in order:
                if what == "compile":
                    called = torch.compile(called, backend="aot_eager")
                elif what == "compile in place":
                    called.compile(backend="aot_eager")
                elif what == "shard":
                    fully_shard(called)
                else:
                    autockpt.apply(called, 10**9)
            called(own_batch(rank))
        except autockpt.AutockptError as error:
            called(own_batch(rank)).backward()
            return type(error).__name__, str(error), autockpt.plan_of(called) is None
    return "", "", False


def _tried(rank: int, way: Way, budget: int, *, rows: int = 512, **asked: Any) -> tuple[str, str, bool]:
    with compiling():
        model, batch = Narrow(), own_batch(rank, rows)
        called: Any = None
        try:
            found = built(way, model, budget, **asked)
            called = found.called
            called(batch)
        except autockpt.AutockptError as error:
            called = called if called is not None else built(way, Narrow(), None).called
            called(batch).backward()
            return type(error).__name__, str(error), autockpt.plan_of(called) is None
    return "", "", False


class Branching(Narrow):
    """It looks at values of a larger batch, which no tracing without values can."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 512 and float(x.sum()) > 1e9:
            return super().forward(x) * 2
        return super().forward(x)


def later(rank: int) -> dict[str, Any]:
    """Give one rank alone a later batch that cannot be planned, and then one that no plan holds."""
    batches = [own_batch(rank), own_batch(rank, 512 if rank == 0 else 600), own_batch(rank)]
    way = Way(order=("compile", "wrap", "apply"))

    def run(budget: int | None) -> list[Any]:
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Branching()
        return trained(model, built(way, model, budget), way, batches)[0]

    with compiling(), warned() as words:
        return {"same": run(None) == run(10**9), "warned": [*words]}
