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
from tests.toys.told import Told

Way = Callable[[nn.Module, Tensor], Tensor]

WAYS: dict[str, Way] = {
    "positional": lambda layer, x: layer(x),
    "keyword": lambda layer, x: layer(hidden=x),
    "tuple": lambda layer, x: layer((x, None)),
    "dict by keyword": lambda layer, x: layer(hidden={"inner": [x]}),
    "object": lambda layer, x: layer(Parts(x, {})),
}


def unwraps(own: Told, hidden: Any) -> Tensor:
    """Takes its tensor in any wrapping. Draws, and has no parameter that would tell the device."""
    while not isinstance(hidden, Tensor):
        if isinstance(hidden, Parts):
            hidden = hidden.left
        else:
            hidden = hidden[0] if isinstance(hidden, (tuple, list)) else hidden["inner"]
    return nn.functional.dropout(hidden.sin(), 0.3).exp()


def wrapping(way: Way, *, spoil: bool = False) -> Told:
    """Hands its tensors on in the given way; `spoil` is whether it changes what it gave to the first layer."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Told(unwraps) for _ in range(3))

    def wraps(own: Told, x: Tensor) -> Tensor:
        x = boundary = own.enter(x)
        own.seen = []
        for layer in own.layers:
            x = way(layer, x)
            own.seen.append(weakref.ref(x))
        if spoil:
            boundary.mul_(2)
        return x * 1

    return Told(wraps, enter=nn.Linear(WIDTH, WIDTH), layers=layers)


RUN = Plan.of([["layers.0", "layers.1", "layers.2"]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
def test_dropout_of_tensors_in_any_wrapping_draws_the_same_mask(way: str, device: str) -> None:
    for plan in (RUN, Plan.of(["layers.0", "layers.2"])):
        assert_same(
            wrapping(WAYS[way]).to(device), plan, lambda model: model(batch(4, WIDTH).to(device)).square().sum()
        )


@pytest.mark.parametrize("way", WAYS)
def test_what_passes_between_the_calls_of_a_run_is_not_held(way: str) -> None:
    model = autockpt.apply(wrapping(WAYS[way]), plan=RUN)
    out = model(batch(4, WIDTH))
    assert [reference() for reference in model.seen] == [None] * 3
    out.sum().backward()


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_changed_in_place_after_the_call_raises(way: str) -> None:
    model = wrapping(WAYS[way], spoil=True)
    autockpt.apply(model, plan=RUN, check="never")
    loss = model(batch(4, WIDTH)).sum()
    with pytest.raises(RuntimeError, match=r"layers\.0#0: .* modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("way", WAYS)
def test_hooks_around_the_model_are_given_the_boundary(way: str) -> None:
    model = autockpt.apply(wrapping(WAYS[way]), plan=RUN)
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
    def adding() -> nn.Module:
        first, second = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2))

        def adds(own: Told, x: Tensor) -> Any:
            out = own.first(x).clone()
            return out.add_(own.second(out).detach())

        return Told(adds, first=first, second=second)

    refused = {r.call for r in autockpt.solve(autockpt.profile(adding(), batch(256, WIDTH)), "1GB").refused}
    assert refused == {"second#0", "second.0#0"}
    assert_same(adding(), ["first"], lambda model: model(batch(4, WIDTH)).square().sum())
