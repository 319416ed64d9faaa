"""Hooks of the user's on saved tensors, around the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from tests.loops.models import network
from tests.loops.twin import Run, held, one, steps


def to_numpy(tensor: Tensor) -> Any:
    return tensor.detach().numpy().copy()


def around(run: Run, hooks: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
    for batch in steps():

        def work(batch: Tensor = batch) -> Tensor:
            with hooks():
                return one(run, batch)

        run.step(work, batch)


def test_hooks_of_the_users_on_saved_tensors() -> None:
    def hooks() -> contextlib.AbstractContextManager[Any]:
        return saved_tensors_hooks(to_numpy, torch.from_numpy)

    held(network, lambda run: around(run, hooks), budget=3.0, excuse="")  # plain, it holds little that torch allocated


def test_hooks_of_the_users_that_only_look() -> None:
    seen: list[int] = []

    def look(tensor: Tensor) -> Tensor:
        seen.append(tensor.numel())
        return tensor

    held(network, lambda run: around(run, lambda: saved_tensors_hooks(look, lambda tensor: tensor)))
    assert seen


def test_saving_on_the_cpu() -> None:
    held(network, lambda run: around(run, save_on_cpu), excuse="")
