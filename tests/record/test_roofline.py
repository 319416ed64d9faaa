"""The clock of fake mode: what operators take on a named device."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import autockpt
from tests.doors import ROOFLINES, RooflineClock, profiles_for, torch_private

DEVICE = ROOFLINES["h100"]


def seconds(run: Callable[[], object]) -> float:
    """What `run` takes, on tensors without values."""
    clock = RooflineClock(DEVICE)
    with torch_private.new_fake_mode(), clock:
        run()
        return clock.seconds([0.0, clock.stamp()])[1]


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)


@pytest.mark.parametrize("groups", [1, 4])
def test_attention_computes(groups: int) -> None:
    """Two products forward, five backward; keys and values that heads share spare nothing."""
    batch, heads, length, width = 2, 8, 4096, 128
    product = 2 * batch * heads * length**2 * width / DEVICE.half_flops

    def forward() -> torch.Tensor:
        query, key, value = bf16(batch, heads, length, width), *(bf16(batch, heads // groups, length, width),) * 2
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=groups > 1)

    assert seconds(forward) == pytest.approx(2 * product, rel=0.01)
    both = seconds(lambda: torch.autograd.backward(forward(), bf16(batch, heads, length, width)))
    assert both == pytest.approx(7 * product, rel=0.1)  # gradients that meet are added


@pytest.mark.parametrize("experts", [1, 8])
def test_grouped_products_compute_as_much_as_one_of_all_rows(experts: int) -> None:
    rows, width, out = 16384, 4096, 8192
    product = 2 * rows * width * out / DEVICE.half_flops

    def forward() -> torch.Tensor:
        ends = torch.empty(experts, dtype=torch.int32)
        return torch._grouped_mm(bf16(rows, width), bf16(experts, width, out), offs=ends)

    assert seconds(forward) == pytest.approx(product, rel=0.01)
    assert seconds(lambda: torch.autograd.backward(forward(), bf16(rows, out))) == pytest.approx(3 * product, rel=0.01)


def test_what_only_makes_room_or_looks_anew_takes_no_time() -> None:
    assert seconds(lambda: torch.empty_like(torch.empty(2**30)).new_empty(2**20).view(2**10, 2**10).t()) == 0
    wide = 2**15
    matrix, rows = torch.empty(2**10, 2**10), torch.empty(wide // 2, 2, 2**10)
    flat = seconds(lambda: rows.view(wide, 2**10) @ matrix)
    assert seconds(lambda: rows @ matrix) == flat > 0  # its result is looked at with three dimensions


def test_what_moves_bytes_takes_as_long_as_they_do() -> None:
    assert seconds(lambda: torch.empty(2**28).neg()) == pytest.approx(2 * 4 * 2**28 / DEVICE.bytes_per_second)


def test_one_recording_has_the_seconds_of_several_devices() -> None:
    """They are those of recordings of their own, to the last digit."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)))
    batch, devices = torch.randn(128, 64), ["t4", "h100", "mi300x"]
    for device, found in zip(devices, profiles_for(model, batch, devices, optimizer="adamw"), strict=True):
        own = autockpt.profile(model, batch, optimizer="adamw", mode="fake", device=device)
        assert found == msgspec.structs.replace(own, recorded=found.recorded)
        assert found.device == device


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_dropout_of_a_cpu_is_named_where_there_is_some(rate: float) -> None:
    """A GPU's holds half of that, and its attention no scores: what is predicted for one is too much then."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate))
    notes = autockpt.profile(model, torch.randn(4, 8), mode="fake").notes
    assert any(note.startswith("dropout as on a CPU") for note in notes) == (rate > 0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_fake_tensor_says_its_device_as_torch_does(device: str) -> None:
    """Modes of ours answer that themselves: each question went through all of them."""
    ask = torch.ops.prim.device.default
    with torch_private.new_fake_mode():
        fake = torch.empty(2, device=device)
        parameter = nn.Parameter(torch.empty(2, device=device))
        assert torch_private.device_asked(ask, (fake,)) == ask(fake) == torch.device(device)
        assert torch_private.device_asked(ask, (parameter,)) in (None, ask(parameter))
        assert torch_private.device_asked(torch.ops.aten.neg.default, (fake,)) is None
    assert torch_private.device_asked(ask, (torch.empty(2, device=device),)) is None
