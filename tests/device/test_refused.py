"""What cannot be held to a budget on a device says so, once and by its own name, and nothing is lost."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

import autockpt
from tests.device.twin import blocks, loss_of
from tests.doors import Device, alive, device_of, in_place
from tests.fake_cuda.device import Options, set_options
from tests.toys.told import Told


def test_an_allocator_that_reports_nothing_is_refused_before_any_step() -> None:
    model, batch = blocks(2)
    set_options(Options(backend="cudaMallocAsync"))
    with pytest.raises(autockpt.NotApplicable, match="cudaMallocAsync, which reports no allocations"):
        autockpt.apply(model, budget="1GB")
    with pytest.raises(autockpt.NotApplicable, match="cudaMallocAsync"):
        autockpt.profile(model, batch)
    assert "forward" not in vars(model)


def test_a_model_that_comes_to_such_a_device_later_is_refused_in_its_first_step() -> None:
    model = autockpt.apply(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), budget="1GB")
    set_options(Options(backend="cudaMallocAsync"))
    model.cuda()
    with pytest.raises(autockpt.NotApplicable, match="cudaMallocAsync"):
        model(torch.randn(4, 8, device="cuda"))


def test_uncached_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    with pytest.raises(autockpt.NotApplicable, match="PYTORCH_NO_CUDA_MEMORY_CACHING is set"):
        autockpt.apply(blocks(2)[0], budget="1GB")


def test_a_graph_that_is_being_captured_is_refused_where_a_step_would_be_recorded() -> None:
    model, batch = blocks(2)
    autockpt.apply(model, budget="1GB")
    set_options(Options(capturing=True))
    with pytest.raises(autockpt.NotApplicable, match="a CUDA graph is being captured"):
        model(**batch)


def test_a_budget_above_the_devices_memory_is_said(caplog: pytest.LogCaptureFixture) -> None:
    autockpt.apply(blocks(2)[0], budget="1TB")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("the budget of 1.00 TB is more than cuda:0 has, which is 8.59 GB")


def test_several_devices_are_said(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 8).to("cuda:1"))
    autockpt.apply(model, budget="1GB")
    (record,) = caplog.records
    assert "parameters lie on cuda:0, cuda:1; the budget is that of cuda:0" in record.getMessage()


def test_memory_of_another_device_is_no_part_of_what_stands() -> None:
    def split(own: Told, input: torch.Tensor) -> Any:
        return own.near(input) + own.far(torch.ones(64, device="cuda:1"))[:8].to("cuda:0")

    model = Told(split, near=nn.Linear(8, 8).to("cuda:0"), far=nn.Linear(64, 64).to("cuda:1"))
    static = autockpt.profile(model, torch.randn(4, 8, device="cuda:0")).static
    assert static.parameter_bytes == 2 * 512


def test_a_full_device_leaves_the_model_as_it_was() -> None:
    model, batch = blocks()
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (2 << 20)) / (8 << 30))
    with pytest.raises(torch.OutOfMemoryError):
        autockpt.apply(model, budget="20MB", inputs={"input": batch["input"].repeat(64, 1)}, loss=loss_of)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert "forward" not in vars(model)
    assert all(torch.equal(tensor.cpu(), state[name]) for name, tensor in model.state_dict().items())
    autockpt.apply(model, budget="30MB", inputs=batch, loss=loss_of)
    loss_of(model(**batch)).backward()


def test_a_full_device_in_a_step_that_is_recorded_is_the_users_error_and_a_smaller_batch_trains() -> None:
    model, batch = blocks()
    autockpt.apply(model, budget="24MB")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (2 << 20)) / (8 << 30))
    with pytest.raises(torch.OutOfMemoryError):
        loss_of(model(batch["input"].repeat(64, 1))).backward()
    torch.cuda.set_per_process_memory_fraction(1.0)
    for _ in range(4):
        loss_of(model(**batch)).backward()
        model.zero_grad()
    assert autockpt.plan_of(model) is not None


def test_a_profiler_of_the_users_that_begins_inside_a_recorded_step_takes_no_process_down() -> None:
    """What a profiler recorded that another one ended has no trace to be saved: torch reads a null pointer there."""
    model, batch = blocks(2)
    autockpt.apply(model, budget="1GB")
    outputs = model(**batch)
    with torch.autograd.profiler.profile():
        loss_of(outputs).backward()
    del outputs
    for _ in range(4):
        model.zero_grad()
        loss_of(model(**batch)).backward()
    assert autockpt.plan_of(model) is not None


def test_nobody_looks_around_while_autograds_thread_may_still_end_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds a tensor in the midst of that ends it a second time: "corrupted size vs. prev_size", by chance."""
    done: list[str] = []
    kind, looks = type(device_of(torch.device("cuda"))), alive.beside
    waits = kind.wait

    def wait(device: Device) -> None:
        done.append("waits")
        waits(device)

    def beside(model: nn.Module, known: Iterable[torch.Tensor], kind: str) -> dict[int, torch.Tensor] | None:
        done.append("looks")
        return looks(model, known, kind)

    monkeypatch.setattr(kind, "wait", wait)
    monkeypatch.setattr(in_place, "beside", beside)
    model, batch = blocks(2)
    autockpt.apply(model, budget="1GB")
    loss_of(model(**batch)).backward()
    assert done[0] == "waits" and "looks" in done
