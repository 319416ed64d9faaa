"""Tensors that come in by keyword or inside containers are as safe as positional ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import autockpt
from autockpt import Plan
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, Parts, batch
from tests.hazards.devices import DEVICES

Way = Callable[[nn.Module, Tensor], Tensor]

WAYS: dict[str, Way] = {
    "positional": lambda layer, x: layer(x),
    "keyword": lambda layer, x: layer(hidden=x),
    "tuple": lambda layer, x: layer((x, None)),
    "dict by keyword": lambda layer, x: layer(hidden={"inner": [x]}),
    "object": lambda layer, x: layer(Parts(x, {})),
}


class Layer(nn.Module):
    """Takes its tensor in any wrapping. Draws, and has no parameter that would tell the device."""

    def forward(self, hidden: Any) -> Tensor:
        while not isinstance(hidden, Tensor):
            if isinstance(hidden, Parts):
                hidden = hidden.left
            else:
                hidden = hidden[0] if isinstance(hidden, (tuple, list)) else hidden["inner"]
        return nn.functional.dropout(hidden.sin(), 0.3).exp()


class Wrapping(nn.Module):
    """Hands its tensors on in the given way."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.way = nn.Linear(WIDTH, WIDTH), way
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.seen: list[weakref.ref[Tensor]] = []
        self.spoil = False

    def forward(self, x: Tensor) -> Tensor:
        x = boundary = self.enter(x)
        self.seen = []
        for layer in self.layers:
            x = self.way(layer, x)
            self.seen.append(weakref.ref(x))
        if self.spoil:
            boundary.mul_(2)
        return x * 1


RUN = Plan.of([["layers.0", "layers.1", "layers.2"]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
def test_dropout_of_tensors_in_any_wrapping_draws_the_same_mask(way: str, device: str) -> None:
    for plan in (RUN, Plan.of(["layers.0", "layers.2"])):
        assert_same(
            Wrapping(WAYS[way]).to(device), plan, lambda model: model(batch(4, WIDTH).to(device)).square().sum()
        )


@pytest.mark.parametrize("way", WAYS)
def test_what_passes_between_the_calls_of_a_run_is_not_held(way: str) -> None:
    model = autockpt.apply(Wrapping(WAYS[way]), plan=RUN)
    out = model(batch(4, WIDTH))
    assert [reference() for reference in model.seen] == [None] * 3
    out.sum().backward()


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_changed_in_place_after_the_call_raises(way: str) -> None:
    model = Wrapping(WAYS[way])
    model.spoil = True
    autockpt.apply(model, plan=RUN, check="never")
    loss = model(batch(4, WIDTH)).sum()
    with pytest.raises(RuntimeError, match=r"layers\.0#0: .* modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("way", WAYS)
def test_hooks_around_the_model_are_given_the_boundary(way: str) -> None:
    model = autockpt.apply(Wrapping(WAYS[way]), plan=RUN)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    x = batch(4, WIDTH)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(x)
    weight = model.enter.weight
    inner = [tensor for tensor in packed if tensor.data_ptr() not in (x.data_ptr(), weight.data_ptr())]
    assert [tuple(tensor.shape) for tensor in inner] == [(4, WIDTH)]
    out.sum().backward()


def test_an_activation_in_place_right_after_a_boundary_is_refused_by_the_recorder() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.Sigmoid())
    plan = autockpt.solve(autockpt.profile(model, batch(256, WIDTH)), "1GB")
    (refusal,) = plan.refused
    assert refusal.call == "1#0" and "changed in place" in refusal.reason
    assert "changed in place" in plan.explain()


def test_an_output_changed_in_place_by_the_caller_refuses_only_the_calls_that_read_it() -> None:
    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.first(x).clone()
            out.add_(self.second(out).detach())
            return out

    refused = {r.call for r in autockpt.solve(autockpt.profile(Adding(), batch(256, WIDTH)), "1GB").refused}
    assert refused == {"second#0", "second.0#0"}
    assert_same(Adding(), ["first"], lambda model: model(batch(4, WIDTH)).square().sum())
