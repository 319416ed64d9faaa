"""What may move a generator: a unit whose states are not read must not draw."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

import autockpt
from autockpt import Plan, Segment
from autockpt._frames.drawing import QUIET_MODULES, never_draws
from autockpt._frames.generators import generators_of

DRAWING = [
    functional.dropout,
    functional.scaled_dot_product_attention,
    functional.rrelu,
    torch.alpha_dropout,
    torch.bernoulli,
    torch.dropout,
    torch.lstm,
    torch.multinomial,
    torch.normal,
    torch.poisson,
    torch.rand_like,
    torch.randint_like,
    torch.Tensor.bernoulli_,
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
]

QUIET = [
    functional.linear,
    functional.gelu,
    torch.cat,
    torch.rsqrt,
    torch.Tensor.add,
    torch.Tensor.mean,
    torch.Tensor.mul,
]


@pytest.mark.parametrize("function", DRAWING, ids=lambda function: str(function.__name__))
def test_what_draws_is_known_to(function: Callable[..., Any]) -> None:
    assert not never_draws(function, [])


@pytest.mark.parametrize("function", QUIET, ids=lambda function: str(function.__name__))
def test_plain_operators_never_draw(function: Callable[..., Any]) -> None:
    assert never_draws(function, [])


def test_python_code_may_do_anything() -> None:
    assert not never_draws(functional.layer_norm, [])
    assert not never_draws(lambda x: x, [])


SHAPES = {"1d": (2, 4, 8), "2d": (2, 4, 8, 8), "3d": (2, 4, 8, 8, 8)}
SIZES = {
    "Conv": (4, 4, 3),
    "Linear": (8, 8),
    "Embedding": (10, 4),
    "LayerNorm": (8,),
    "RMSNorm": (8,),
    "GroupNorm": (2, 4),
    "BatchNorm": (4,),
    "Upsample": (16,),
    "Softmax": (1,),
    "LogSoftmax": (1,),
    "AdaptiveAvgPool": (2,),
    "AvgPool": (2,),
    "MaxPool": (2,),
}
"""Arguments by the beginning of a module's name."""


@pytest.mark.parametrize("kind", QUIET_MODULES, ids=lambda kind: str(kind.__name__))
def test_no_operator_of_a_quiet_module_draws(kind: type[nn.Module]) -> None:
    drawn: list[object] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.Tag.nondeterministic_seeded in func.tags:
                drawn.append(func)
            return func(*args, **(kwargs or {}))

    module = kind(*next((sizes for name, sizes in SIZES.items() if kind.__name__.startswith(name)), ()))
    batch = torch.ones(SHAPES.get(kind.__name__[-2:], SHAPES["2d"]))
    given = batch.long() if kind is nn.Embedding else batch
    before = torch.get_rng_state()
    with Watch():  # type: ignore[no-untyped-call]
        module(given)
    assert not drawn
    assert torch.equal(torch.get_rng_state(), before)
    assert never_draws(module.forward, [given])


class Noisy(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * torch.rand_like(weight)


class Narrow(nn.Linear):
    pass


def parametrised() -> nn.Linear:
    module = nn.Linear(8, 8)
    parametrize.register_parametrization(module, "weight", Noisy())
    return module


def of_another_kind() -> nn.Linear:
    module = nn.Linear(8, 8)
    module.weight = nn.Parameter(module.weight.as_subclass(type("Own", (torch.Tensor,), {})))
    return module


def replaced() -> nn.Linear:
    module = nn.Linear(8, 8)
    module.forward = types.MethodType(lambda self, x: functional.dropout(x), module)  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize("make", [parametrised, of_another_kind, replaced, lambda: Narrow(8, 8)])
def test_of_other_modules_nothing_is_known(make: Callable[[], nn.Module]) -> None:
    assert not never_draws(make().forward, [torch.ones(2, 8)])


def test_a_forward_that_was_replaced_for_all_of_a_kind_may_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: functional.dropout(x))
    assert not never_draws(nn.Linear(8, 8).forward, [torch.ones(2, 8)])


def test_a_kept_module_may_draw_its_weights() -> None:
    """Its class is no longer torch's own, though its forward is."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.kept, self.last = nn.Linear(8, 8), parametrised(), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dropped: torch.Tensor = self.last(torch.tanh(self.kept(torch.tanh(self.first(x)))))
            return dropped.square()

    torch.manual_seed(0)
    model, batch = nn.Sequential(Block()), torch.randn(4, 8)

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(1)
        return list(torch.autograd.grad(model(batch).sum(), list(model.parameters())))

    plain = gradients()
    autockpt.apply(model, plan=Plan(segments=(Segment(calls=("0#0",), keep=("0.kept#0",)),)))
    assert all(map(torch.equal, gradients(), plain))


def test_no_generator_is_read_twice() -> None:
    given = torch.Generator()
    cpu = torch.device("cpu")
    assert generators_of([cpu, cpu], [given, 3, given]) == [torch.default_generator, given]
