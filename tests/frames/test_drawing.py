"""What may move a generator: a unit whose states are not read must not draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.doors import generators_of, never_draws

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
    assert not never_draws(function)


@pytest.mark.parametrize("function", QUIET, ids=lambda function: str(function.__name__))
def test_plain_operators_never_draw(function: Callable[..., Any]) -> None:
    assert never_draws(function)


def test_python_code_may_do_anything() -> None:
    assert not never_draws(functional.layer_norm)
    assert not never_draws(lambda x: x)


def test_no_generator_is_read_twice() -> None:
    given = torch.Generator()
    cpu = torch.device("cpu")
    assert generators_of([cpu, cpu], [given, 3, given]) == [torch.default_generator, given]
