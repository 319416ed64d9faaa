"""What only a CUDA device can show: models over two devices, captured graphs, random numbers drawn elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from tests.frames.models import WIDTH, batch
from tests.hazards.devices import DEVICES
from tests.toys.told import Told
from tests.twin import counting_replays

CUDA = pytest.mark.gpu


def drops() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh())


def split(device: str) -> nn.Module:
    """A first half on the CPU and a second on another device, with dropout on both, inside one call."""
    torch.manual_seed(0)
    return Told(lambda own, x: own.far(own.near(x.cpu()).to(device)), near=drops(), far=drops().to(device))


def elsewhere(device: str) -> nn.Module:
    """Draws on a device on which it is given nothing and has nothing."""
    return Told(lambda own, x: nn.functional.dropout(x.to(device).sin(), 0.3).exp().cpu())


def outcome(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> list[Tensor]:
    """Gradients of three steps, and where every generator stands."""
    torch.manual_seed(3)
    for _ in range(3):
        loss(model).backward()
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states += torch.cuda.get_rng_state_all()
    return [*(parameter.grad for parameter in model.parameters() if parameter.grad is not None), *states]


def total(model: nn.Module) -> Tensor:
    out: Tensor = model(batch(4, WIDTH)).square().sum()
    return out


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("device", DEVICES)
def test_a_segment_over_two_devices_draws_the_same_numbers_on_both(device: str) -> None:
    plain = nn.Sequential(split(device), split(device))
    for plan in ([["0", "1"]], ["0", "1"], ["0.near", "1.far"]):
        planned = autockpt.apply(copy.deepcopy(plain), plan=Plan.of(plan))
        expected = outcome(copy.deepcopy(plain), total)
        with counting_replays() as replays:
            found = outcome(planned, total)
        assert len(replays) == 3 * len(plan)
        assert len(expected) == len(found) and all(map(torch.equal, expected, found))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_numbers_drawn_on_a_device_that_a_call_has_nothing_on_refuse_it(device: str) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), elsewhere(device), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    torch.zeros(1, device=device)
    plan = autockpt.solve(autockpt.profile(model, batch(64, WIDTH)), "1GB")
    reasons = {refusal.call: refusal.reason for refusal in plan.refused}
    if device == "cpu":
        assert reasons == {}
    else:
        assert "on a device" in reasons["1#0"]


@CUDA
@pytest.mark.needs_kernels("graphs capture launches of kernels")
def test_a_captured_graph_holds_the_plain_step() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))).cuda()
    planned = autockpt.apply(copy.deepcopy(plain), plan=Plan.of([["0", "1"], "2"]))
    x = batch(8, 64).cuda()
    plain(x).square().sum().backward()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            planned.zero_grad()
            planned(x).square().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    planned.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with counting_replays() as replays, torch.cuda.graph(graph):
        planned(x).square().sum().backward()
    assert replays == []
    for parameter in planned.parameters():
        assert parameter.grad is not None
        parameter.grad.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(plain.parameters(), planned.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.allclose(one.grad, other.grad)


@CUDA
@pytest.mark.usefixtures("deterministic")
def test_two_devices_replay_at_the_same_time() -> None:
    """Backward runs a thread a device; each replays its own frames."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    torch.manual_seed(0)

    plain = Told(
        lambda own, x: own.left(x.cuda(0)).cpu() + own.right(x.cuda(1)).cpu(),
        left=drops().cuda(0),
        right=drops().cuda(1),
    )
    planned = autockpt.apply(copy.deepcopy(plain), plan=Plan.of(["left", "right"]))
    assert all(map(torch.equal, outcome(plain, total), outcome(planned, total)))
