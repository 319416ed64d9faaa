"""Two processes that train together: what is not right yet raises one named error on both, and neither waits."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import autockpt

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")

STEPS = 5


def blocks(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)]
    return nn.Sequential(*([nn.BatchNorm1d(32)] if norm else []), *layers)


def batch(rank: int) -> Tensor:
    return torch.randn(256, 32, generator=torch.Generator().manual_seed(rank))


def train(model: nn.Module, rank: int, steps: int = STEPS) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch(rank)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def sharded(model: nn.Sequential) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for unit in (*model, model):
        fully_shard(unit, mesh=mesh)
    return model


def data_parallel(rank: int) -> None:
    """Plain data parallelism trains on, its buckets counted."""
    found = []
    plain, planned_model = (DistributedDataParallel(blocks(norm=True)) for _ in range(2))
    autockpt.apply(planned_model, "1.6MB")
    for model in (plain, planned_model):
        losses = train(model, rank)
        found.append([*losses, *(each.detach().clone() for each in (*model.parameters(), *model.buffers()))])
    assert all(map(torch.equal, *found))
    plan = autockpt.plan_of(planned_model)
    assert plan is not None and plan.segments
    inner = blocks()
    weights = sum(each.nbytes for each in inner.parameters())
    autockpt.apply(inner, "100MB")
    alone = blocks()
    autockpt.apply(alone, "100MB")
    peaks = []
    for each in (alone, inner):
        train(DistributedDataParallel(inner) if each is inner else each, rank)
        planned = autockpt.plan_of(each)
        assert planned is not None
        peaks.append(planned.plain_peak_bytes)
    assert peaks[1] >= peaks[0] + weights


def refused(work: Callable[[], object], said: str) -> None:
    with pytest.raises(autockpt.NotApplicable, match=said):
        work()
    distributed.barrier()


def sharded_parameters(rank: int) -> None:
    model = sharded(blocks())
    refused(lambda: autockpt.apply(model, "1MB", inputs=batch(rank)), "is sharded over ranks")
    refused(lambda: autockpt.apply(model, "1MB", plan_for={"input": (512, 32)}), "is sharded over ranks")
    refused(lambda: autockpt.profile(model, batch(rank)), "is sharded over ranks")
    refused(lambda: autockpt.profile(model, batch(rank), mode="fake"), "is sharded over ranks")
    older = FullyShardedDataParallel(blocks(), device_id=torch.device("cpu"))
    refused(lambda: autockpt.apply(older, "1MB"), "is sharded over ranks .FSDP1")
    parts = parallelize_module(blocks(), init_device_mesh("cpu", (2,)), {"0.0": ColwiseParallel()})
    refused(lambda: autockpt.apply(parts, "1MB", inputs=batch(rank)), "is sharded over ranks .DTensor")
    segments = autockpt.Plan.of([["0", "1"]])
    units = nn.Sequential(*(FullyShardedDataParallel(each, device_id=torch.device("cpu")) for each in blocks()))
    refused(lambda: autockpt.apply(units, plan=segments), "covers 2 units that are sharded")
    autockpt.apply(model, plan=autockpt.Plan.of(["0", "1"]))
    train(model, rank, 2)
    given = autockpt.apply(blocks(), "lowest", inputs=batch(rank), solver="articulation")
    assert any(len(segment.calls) > 1 for segment in autockpt.plan_of(given).segments)  # type: ignore[union-attr]
    train(sharded(given), rank)  # another kind of step, which is recorded and planned anew
    assert all(len(segment.calls) == 1 for segment in autockpt.plan_of(given).segments)  # type: ignore[union-attr]


def collectives(rank: int) -> None:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            value = value.clone()
            distributed.all_reduce(value)
            return value

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0]

    class Reduces(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            found: Tensor = Sum.apply(hidden)  # type: ignore[no-untyped-call]
            return found

    model = autockpt.apply(nn.Sequential(blocks(), Reduces()), "2MB")
    refused(lambda: train(model, rank), "runs collectives in forward")
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(blocks(norm=True))
    refused(lambda: autockpt.apply(norm, "2MB"), "runs collectives in forward")


def own_steps(rank: int) -> None:
    model = DistributedDataParallel(blocks(norm=True))
    refused(lambda: autockpt.apply(model, "2MB", inputs=batch(rank)), "broadcasts buffers")


WORKS = (data_parallel, sharded_parameters, collectives, own_steps)


def _work(rank: int, folder: str, said: Any) -> None:
    torch.set_num_threads(1)
    for work in WORKS:
        store = f"file://{folder}/{work.__name__}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        try:
            work(rank)
            said.put((work.__name__, ""))
        except BaseException:
            said.put((work.__name__, traceback.format_exc()))
            return
        finally:
            distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp"])  # imported once for both
    said: Any = context.Queue()
    processes = [context.Process(target=_work, args=(rank, str(tmp_path), said)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for work in WORKS:
            assert [said.get(timeout=240) for _ in processes] == [(work.__name__, "")] * 2
    finally:
        for process in processes:
            process.terminate()
            process.join()


def test_a_thread_that_imports_what_shards_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is only half imported has no classes yet: the step raised an AttributeError."""
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", ModuleType("torch.distributed.fsdp"))
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    autockpt.apply(model, plan=autockpt.Plan.of(["1"]))
    assert autockpt.plan_of(model) is not None
