"""Operators: the CPU's bits, in memory of the device; views, `out=` and changes in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.device.twin import Batch, outcome, plain_and_planned, within
from tests.toys.told import Told

OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "matmul": lambda x: x @ x.mT,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "gelu": functional.gelu,
    "silu": functional.silu,
    "convolution": lambda x: functional.conv1d(x, x[:, :, :3]),
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "sort": lambda x: x.sort(dim=-1, stable=True)[0],
    "gather": lambda x: x.gather(1, x.argsort(1)),
    "index": lambda x: x[x[:, 0, 0] > 0],
    "index_put": lambda x: x.clone().index_put_((torch.tensor([0]),), x[:1] * 2),
    "cumsum": lambda x: x.cumsum(0),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "split": lambda x: x.split(2, dim=1)[1] * 3,
    "half": lambda x: (x.bfloat16() * x.bfloat16()).float(),
    "complex": lambda x: torch.fft.rfft(x).abs(),
    "foreach": lambda x: torch._foreach_mul([x, x], 2.0)[1],
    "topk": lambda x: x.topk(2, dim=1)[0],
    "einsum": lambda x: torch.einsum("abc,abd->acd", x, x),
    "cross_entropy": lambda x: functional.cross_entropy(x.flatten(0, 1), torch.arange(12, device=x.device) % 5),
    "empty": lambda x: x[:0].sum(0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_values_and_gradients_have_the_bits_of_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    host = torch.randn(3, 4, 5, requires_grad=True)
    there = host.detach().cuda().requires_grad_()
    expected, found = OPERATORS[name](host), OPERATORS[name](there)
    assert found.device.type == "cuda"
    assert torch.equal(expected, found.cpu())
    if expected.numel():
        expected.sum().backward()
        found.sum().backward()
        assert host.grad is not None and there.grad is not None
        assert torch.equal(host.grad, there.grad.cpu())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("kind", ["single", "foreach", "fused"])
def test_a_training_step_has_the_bits_of_the_cpu(optimizer: Any, kind: str) -> None:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    there, x = copy.deepcopy(host).cuda(), torch.randn(8, 6)
    chosen = {"foreach": kind == "foreach", "fused": kind == "fused"}
    for model, batch in ((host, x), (there, x.cuda())):
        steps = optimizer(model.parameters(), lr=0.1, **chosen)
        for _ in range(3):
            steps.zero_grad()
            model(batch).square().mean().backward()
            steps.step()
    assert all(torch.equal(a, b.cpu()) for a, b in zip(host.parameters(), there.parameters(), strict=True))


def test_views_share_their_storage() -> None:
    x = torch.arange(24.0, device="cuda").reshape(2, 3, 4)
    views = [
        x.mT,
        x[1],
        x.flatten(),
        x.view(6, 4),
        x.unfold(2, 2, 1),
        x.expand(2, 2, 3, 4),
        x.split(1)[1],
        x.diagonal(),
    ]
    before = torch.cuda.memory_allocated()
    x.add_(100)
    assert torch.cuda.memory_allocated() == before
    for each in views:
        assert each.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert each.min() >= 100


def test_a_change_in_place_is_counted_and_returns_the_tensor_itself() -> None:
    x = torch.zeros(3, device="cuda")
    version, place = x._version, x.data_ptr()
    assert x.add_(1) is x
    assert (x._version, x.data_ptr()) == (version + 1, place)
    x[1:].mul_(5)
    assert x.tolist() == [1, 5, 5]


def test_out_is_written_and_grows_where_it_is_empty() -> None:
    a, given, empty = torch.ones(2, 3, device="cuda"), torch.zeros(2, 3, device="cuda"), torch.empty(0, device="cuda")
    place = given.data_ptr()
    assert torch.add(a, a, out=given) is given
    assert torch.add(a, a, out=empty) is empty
    assert given.data_ptr() == place
    assert torch.equal(given, empty)
    assert empty.shape == (2, 3)


def test_results_lie_in_memory_of_the_device() -> None:
    x = torch.randn(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    y = x * 2
    assert torch.cuda.memory_allocated() - before == 4096
    assert y.device.type == "cuda"


def test_copies_go_both_ways_and_keep_strides() -> None:
    x = torch.randn(4, 5).mT
    there = x.cuda()
    assert there.stride() == x.stride()
    assert torch.equal(there.cpu(), x)
    assert torch.equal(there.to("cuda", torch.float64).cpu(), x.double())
    assert torch.zeros(5, 4).copy_(there).equal(x)


def test_storages_are_copied_and_moved() -> None:
    x = torch.arange(6.0, device="cuda")
    storage = x.untyped_storage()
    assert storage.cpu().tolist() == storage.clone().cpu().tolist() == x.cpu().untyped_storage().tolist()
    again = copy.deepcopy(nn.Parameter(x))
    assert again.device.type == "cuda"
    assert again.data_ptr() != x.data_ptr()
    assert torch.equal(again, x)
    x.resize_(20)
    assert x[:6].tolist() == list(range(6))


def test_a_mode_of_the_users_sees_operators_once() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    x = torch.randn(3, 3, device="cuda")
    with Log():  # type: ignore[no-untyped-call]
        (x @ x).relu()
    assert seen == ["aten.mm.default", "aten.relu.default"]


def host_numbers(*, draws: bool) -> nn.Module:
    """Divides by a number that it makes on the host, as DeBERTa's attention does, or draws there."""

    def act(own: Told, input: torch.Tensor) -> Any:
        scale = torch.sqrt(torch.tensor(float(input.shape[-1])))
        if draws:
            scale = scale + torch.rand(())
        return own.down(functional.gelu(own.up(input) / scale))

    return Told(act, up=nn.Linear(64, 256), down=nn.Linear(256, 64))


@pytest.mark.parametrize("draws", [False, True], ids=["made", "drawn"])
def test_calls_that_make_numbers_on_the_host_are_recomputed(draws: bool, caplog: pytest.LogCaptureFixture) -> None:
    """They looked like numbers from a closure, since the tape of a device has no storages of the host."""

    def build() -> tuple[nn.Module, Batch]:
        torch.manual_seed(0)
        return nn.Sequential(*(host_numbers(draws=draws) for _ in range(6))).cuda(), {
            "input": torch.randn(512, 64).cuda()
        }

    found = plain_and_planned(build, share=0.5)
    assert outcome(found) == [True] * 6
    assert within(found) == [True] * 6
    assert found.plan is not None
    assert any("#0" in call and "." not in call for segment in found.plan.segments for call in segment.calls)
    assert caplog.messages == []
