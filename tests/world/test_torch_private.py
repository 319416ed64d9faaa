"""Each private torch name with which ranks are planned for that are not there still does what it needs to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from tests.doors import torch_private


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    torch_private.open_fake_group(4)
    yield
    torch_private.close_group()
    assert not distributed.is_initialized()


def test_the_fake_group_says_what_it_is() -> None:
    assert (torch_private.group_backend(), torch_private.group_size()) == (torch_private.FAKE, 4)
    assert torch_private.own_rank() == 0
    distributed.all_reduce(torch.ones(2))  # returns though nobody else comes


def test_resizes_of_storages_are_told() -> None:
    storage, told = torch.ones(4).untyped_storage(), []

    def tell(storage: torch.UntypedStorage, before: int) -> None:
        told.append((before, storage.nbytes()))

    with torch_private.told_of_resizes(tell):
        storage.resize_(0)
        storage.resize_(32)
    storage.resize_(0)
    assert told == [(16, 0), (0, 32)]


def test_units_take_other_tensors_as_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    torch_private.shard(model)
    parameters = list(model.parameters())
    mode: Any = torch_private.new_fake_mode()
    torch_private.replace_tensors(model, mode.from_tensor)
    assert [*map(id, model.parameters())] == [*map(id, parameters)]
    here = torch_private.parts((*model.parameters(), *model.buffers()))
    assert all(torch_private.fake_mode_of(each) is mode for each in here)
    with mode:
        model(torch.ones(4, 8)).sum().backward()
    assert [torch_private.local(each.grad).shape[0] for each in parameters if each.grad is not None] == [2] * 4


def test_a_stage_keeps_its_outputs_and_the_gradients_of_its_inputs() -> None:
    stage: Any = pipelining.PipelineStage(nn.Linear(2, 2), 0, 4, torch.device("cpu"))
    stage.output_chunks.append((torch.ones(1), torch.ones(2)))
    came, unread = torch.ones(3), torch.ones(4)
    came.grad = torch.ones(3)
    stage.args_recv_info = {0: (SimpleNamespace(buffer=came), SimpleNamespace(buffer=unread)), 1: (object(),)}
    assert [each.numel() for each in torch_private.kept_by_stage(stage)] == [1, 2, 3]


def test_a_wait_is_told_once_all_is_asked_for_and_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[object] = []

    class Work:
        def wait(self) -> None:
            happened.append("waited")

    class Watcher:
        def waits(self, arriving: Sequence[torch.Tensor]) -> None:
            happened.extend(arriving)

    def posts(ops: Sequence[Any], desc: str | None = None) -> list[Any]:
        happened.append(desc)
        return [Work() for _ in ops]

    monkeypatch.setattr(schedules, "_batch_p2p", posts)
    into, out, watcher = torch.ones(1), torch.ones(2), Watcher()
    ops = [SimpleNamespace(op=distributed.isend, tensor=out), SimpleNamespace(op=distributed.irecv, tensor=into)]
    torch_private.watch_waits(watcher)
    posted: Any = schedules
    posted._wait_batch_p2p(posted._batch_p2p(ops, desc="both"))
    posted._wait_batch_p2p(posted._batch_p2p(ops[:1], desc="sends"))
    assert happened == ["both", into, "waited", "waited", "sends", "waited"]
    torch_private.unwatch_waits(watcher)
    assert posted._batch_p2p is posts
    torch_private.watch_waits(watcher)
    del watcher
    posted._batch_p2p([])
    assert posted._batch_p2p is posts


def test_a_stage_names_the_outputs_whose_gradients_arrive() -> None:
    stage: Any = pipelining.PipelineStage(nn.Linear(2, 2), 0, 4, torch.device("cpu"))
    into = [torch.ones(1) for _ in range(3)]
    outputs = [torch.ones(1) for _ in range(3)]
    stage.grad_recv_info = {number: (SimpleNamespace(buffer=each),) for number, each in enumerate(into)}
    stage.fwd_cache = {number: ((outputs[number],), []) for number in (0, 2)}
    assert torch_private.outputs_awaiting(stage, into[1:]) == [outputs[2]]
