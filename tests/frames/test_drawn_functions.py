"""Drawn functions under `autockpt.recompute` leave what the plain functions leave, bit for bit."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from tests.doors import install
from tests.twin import Outcome, left_by

WIDTH = 4

Op = Callable[["Parts", Tensor], Any]


class Parts(nn.Module):
    """What drawn operators reach, by closures, arguments and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.calls, self.own, self.last = 0, torch.Generator().manual_seed(2), torch.zeros(1)

    def counted(self, x: Tensor) -> Any:
        """Change attributes and a buffer, and compute with them."""
        self.calls += 1
        self.seen = self.seen + x.detach().mean(0)  # type: ignore[has-type]
        self.last = x.detach()[:1]
        return x * self.calls + self.seen

    def decayed(self, x: Tensor) -> Any:
        """Write a buffer in place."""
        with torch.no_grad():
            self.seen.mul_(0.5).add_(x.detach().sum(0))
        return x + self.seen.clone()


def _in_place(_: Parts, x: Tensor) -> Any:
    y = x * 2
    y[:, :2].add_(1)
    return y.mul_(x)


def _views(_: Parts, x: Tensor) -> Any:
    return x.t().contiguous().view(-1).view(x.shape[1], x.shape[0]).t().exp() * 0.1


def _autocast(parts: Parts, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return parts.linear(x).float()


def _half_graph(parts: Parts, x: Tensor) -> Any:
    with torch.no_grad():
        scale = parts.linear(x).sigmoid()
    return x * scale


OPS: dict[str, Op] = {
    "linear": lambda parts, x: parts.linear(x),
    "tanh": lambda _, x: x.tanh(),
    "square": lambda _, x: x.square() * 0.1,
    "norm": lambda parts, x: parts.norm(x),
    "dropout": lambda parts, x: parts.drop(x),
    "noise": lambda parts, x: x + torch.rand(x.shape, generator=parts.own),
    "python": lambda _, x: x * random.random(),
    "counted": lambda parts, x: parts.counted(x),
    "decayed": lambda parts, x: parts.decayed(x),
    "in place": _in_place,
    "views": _views,
    "autocast": _autocast,
    "no grad": _half_graph,
    "weight": lambda parts, x: x @ parts.linear.weight.t().softmax(0),
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A function: operators and functions inside, in order.

    Attributes:
        steps: names of operators, and functions that are called inside.
        way: how it gets what it reaches.
        recomputes: whether it is under `autockpt.recompute`.
    """

    steps: tuple[str | Drawn, ...]
    way: str
    recomputes: bool


WAYS = ("closure", "keyword", "partial", "method", "list")

FUNCTIONS = st.recursive(
    st.sampled_from(sorted(OPS)),
    lambda inner: st.builds(
        Drawn, st.lists(inner, min_size=1, max_size=4).map(tuple), st.sampled_from(WAYS), st.booleans()
    ),
    max_leaves=8,
)
DRAWN = st.builds(Drawn, st.lists(FUNCTIONS, min_size=1, max_size=4).map(tuple), st.sampled_from(WAYS), st.just(True))


def run(drawn: Drawn, parts: Parts, x: Tensor, wrap: Callable[[Any], Any]) -> Any:
    """Run a drawn function."""
    wrap_this: Callable[[Any], Any] = wrap if drawn.recomputes else _plain

    def body(own: Parts, it: Tensor) -> Any:
        for step in drawn.steps:
            it = OPS[step](own, it) if isinstance(step, str) else run(step, own, it, wrap)
        return it

    if drawn.way == "closure":
        return wrap_this(lambda it: body(parts, it))(x)
    if drawn.way == "keyword":
        return wrap_this(body)(it=x, own=parts)
    if drawn.way == "partial":
        return wrap_this(functools.partial(body, parts))(x)
    if drawn.way == "method":
        return wrap_this(body.__get__(parts))(x)
    held: list[Any] = [parts, x]  # the loop below empties it before backward
    result = wrap_this(lambda: {"out": body(held[0], held[1])})()["out"]
    held.clear()
    return result


def _plain(function: Any) -> Any:
    return function


class Model(nn.Module):
    """A drawn function between two layers, so that a plan may recompute what is around it."""

    def __init__(self, drawn: Drawn, wrap: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.drawn, self.wrap = Parts(), drawn, wrap

    def forward(self, x: Tensor) -> Any:
        return run(self.drawn, self.inner, x * 1.5, self.wrap).sin()


def trained(drawn: Drawn, wrap: Callable[[Any], Any], *, planned: bool) -> Outcome:
    torch.manual_seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Model(drawn, wrap), Model(drawn, wrap))
    if planned:
        install(model, Plan.of([("1",), ("2",)]), check="sampled")
    found: dict[str, Tensor | None] = {}
    for number in range(3):
        model.zero_grad()
        x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(number)).requires_grad_()
        loss = model(x).square().mean()
        loss.backward()
        found |= {f"loss {number}": loss.detach(), f"input {number}": x.grad}
        found |= {f"{number} {name}": value for name, value in left_by(model).items()}
    for name in ("1", "2"):
        parts = model.get_submodule(f"{name}.inner")
        assert isinstance(parts, Parts)
        found |= {
            f"{name} calls": torch.tensor(parts.calls),
            f"{name} own": parts.own.get_state(),
            f"{name} last": parts.last,
        }
    return Outcome(found | {"python": torch.tensor(random.random(), dtype=torch.double)})


def check(drawn: Drawn, *, planned: bool) -> None:
    expected = trained(drawn, _plain, planned=False)
    assert expected.differences(trained(drawn, autockpt.recompute, planned=planned)) == []


@settings(max_examples=20, deadline=None)
@given(DRAWN, st.booleans())
def test_drawn_functions_are_as_plain(drawn: Drawn, planned: bool) -> None:
    check(drawn, planned=planned)


@pytest.mark.sweep
@settings(max_examples=400, deadline=None)
@given(DRAWN, st.booleans())
def test_many_drawn_functions_are_as_plain(drawn: Drawn, planned: bool) -> None:
    check(drawn, planned=planned)
