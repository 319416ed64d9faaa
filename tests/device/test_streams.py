"""Streams, threads and the two devices: where work runs, and where backward runs it again."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from tests.fake_cuda.device import Options, set_options, take_peak, watching

DEVICES = 2


def leaf(device: str = "cuda") -> Tensor:
    return torch.randn(32, 32, device=device, requires_grad=True)


def test_backward_runs_in_a_thread_of_the_devices() -> None:
    out = (leaf() @ leaf()).sum()
    with watching() as ran:
        out.backward()
    here = threading.get_native_id()
    products = {each.thread for each in ran if each.operator == "aten::mm"}
    assert len(products) == 1
    assert here not in products


def test_each_thread_takes_a_workspace_of_its_own_and_keeps_it() -> None:
    (leaf() @ leaf()).sum().backward()  # both threads have one of the size before
    weights = leaf(), leaf()
    before = torch.cuda.memory_allocated()
    (weights[0] @ weights[1]).sum().backward()
    assert torch.cuda.memory_allocated() - before == sum(each.nbytes for each in weights)  # the gradients


def test_the_first_product_of_a_thread_takes_a_workspace_and_the_second_none() -> None:
    left, right, size = leaf().detach(), leaf().detach(), 1 << 18
    set_options(Options(workspace_bytes=size))
    before, count, levels = torch.cuda.memory_allocated(), 16, []
    barrier = threading.Barrier(count, lambda: levels.append(torch.cuda.memory_allocated() - before))

    def products() -> None:
        for _ in range(2):
            left @ right
            barrier.wait()
        barrier.wait()  # a thread that ends gives its own on

    threads = [threading.Thread(target=products) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert levels[0] in range(size, count * size + 1, size)  # threads of earlier tests have left some
    assert levels[1] == levels[2] == levels[0]


def test_convolutions_take_a_workspace_and_give_it_back() -> None:
    net, x = nn.Conv2d(3, 3, 3).cuda(), torch.randn(2, 3, 8, 8, device="cuda")
    net(x)
    set_options(Options(scratch_bytes=1 << 20))
    before = torch.cuda.memory_allocated()
    take_peak()
    out = net(x)
    assert take_peak() >= before + (1 << 20)
    assert torch.cuda.memory_allocated() - before < 1 << 20
    del out


def test_backward_runs_on_the_stream_of_the_forward() -> None:
    left, right, side = leaf(), leaf(), torch.cuda.Stream()
    with watching() as ran:
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
            out = (left @ right).relu().sum()
        assert torch.cuda.current_stream() == torch.cuda.default_stream() != side
        torch.autograd.grad(out, (left, right))
    streams = [each.stream for each in ran if each.operator in {"aten::mm", "aten::threshold_backward"}]
    assert streams == [side.stream_id] * 4


def test_each_stream_has_a_pool_of_blocks() -> None:
    side = torch.cuda.Stream()
    kept = torch.empty(5000, device="cuda")
    place = kept.data_ptr()
    del kept
    with torch.cuda.stream(side):
        elsewhere = torch.empty(5000, device="cuda")
    assert elsewhere.data_ptr() != place
    assert torch.empty(5000, device="cuda").data_ptr() == place


def test_the_current_stream_belongs_to_a_thread() -> None:
    found = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_stream().stream_id))
        thread.start()
        thread.join()
    assert found == [0]


def test_a_capturing_stream_says_so() -> None:
    assert not torch.cuda.is_current_stream_capturing()
    set_options(Options(capturing=True))
    assert torch.cuda.is_current_stream_capturing()


def test_events_measure_what_passed_between_them() -> None:
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    second.record()
    assert first.query()
    assert first.elapsed_time(second) >= 0 >= second.elapsed_time(first)


@pytest.fixture
def two() -> None:
    if torch.cuda.device_count() < DEVICES:
        pytest.skip("needs two fake devices")


@pytest.mark.usefixtures("two")
def test_each_device_has_memory_and_a_generator_of_its_own() -> None:
    torch.manual_seed(1)
    before = [torch.cuda.memory_allocated(index) for index in range(DEVICES)]
    states = torch.cuda.get_rng_state_all()
    kept = torch.rand(1000, device="cuda:1")
    after = [torch.cuda.memory_allocated(index) for index in range(DEVICES)]
    assert [late - early for early, late in zip(before, after, strict=True)] == [0, 4096]
    assert torch.equal(torch.cuda.get_rng_state(0), states[0])
    assert not torch.equal(torch.cuda.get_rng_state(1), states[1])
    assert kept.device.index == 1


@pytest.mark.usefixtures("two")
def test_the_current_device_takes_what_names_none() -> None:
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        assert torch.ones(3, device="cuda").add(1).device.index == 1
        assert torch.cuda.current_stream().device.index == 1
    assert torch.cuda.current_device() == 0
    assert (torch.ones(3, device="cuda:1") * 2).device.index == 1


@pytest.mark.usefixtures("two")
def test_backward_runs_in_a_thread_for_each_device() -> None:
    left, right = leaf("cuda:0"), leaf("cuda:1")
    out = (left @ left).to("cuda:1") @ right
    with watching() as ran:
        out.sum().backward()
    threads = {each.device: each.thread for each in ran if each.operator == "aten::mm"}
    assert set(threads) == {0, 1}
    assert threads[0] != threads[1]
    assert left.grad is not None and left.grad.device.index == 0


@pytest.mark.usefixtures("two")
def test_a_device_that_is_not_there_raises() -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(3, device="cuda:7")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(7)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_tensors_of_two_devices_in_one_operator_raise(other: str) -> None:
    here, there = torch.ones(3, device="cuda:0"), torch.ones(3, device=other)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        here + there
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([here, there])
    assert torch.equal(here + torch.tensor(1.0), here * 2)  # a number without dimensions is of no device
