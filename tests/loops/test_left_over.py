"""Fake recordings leave nothing in caches of the model's own that training could come upon."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.toys.told import Told

SIZES = (64, 72, 80, 64, 72, 80, 100, 90)
"""Since sizes vary, a plan is made for 100 rows before there are any."""

cached = functools.lru_cache(maxsize=None)(functools.partial(torch.linspace, 0.0, 0.1))

hidden: Any = ctypes.py_object({})


def cached_by_hand(size: int) -> Tensor:
    """A cache that an extension written in C holds, which nothing finds."""
    made: dict[int, Tensor] = hidden.value
    if size not in made:
        made[size] = torch.linspace(0.0, 0.1, size)
    return made[size]


def ramped(ramp: Callable[[int], Tensor]) -> nn.Module:
    first, second = nn.Linear(32, 32), nn.Linear(32, 32)
    return Told(
        lambda own, x: x + own.second(torch.tanh(own.first(x + ramp(len(x))[:, None]))), first=first, second=second
    )


def train(ramp: Callable[[int], Tensor], budget: str | None) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(ramped(ramp) for _ in range(4))).train()
    if budget is not None:
        autockpt.apply(model, budget)
    found = []
    for size in SIZES:
        model.zero_grad()
        model(torch.randn(size, 32)).square().mean().backward()
        found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return found


def test_a_cached_function_makes_its_tensors_again() -> None:
    gc.unfreeze()  # what is frozen is not found
    plain = train(cached, None)
    cached.cache_clear()
    planned = train(cached, "lowest")
    assert all(type(gradient) is Tensor for gradient in planned)
    assert all(map(torch.equal, plain, planned)) and len(plain) == len(planned)


def test_a_tensor_without_values_that_somebody_kept_ends_training_with_an_error() -> None:
    with pytest.raises(autockpt.AutockptError, match="a fake recording made"):
        train(cached_by_hand, "lowest")
