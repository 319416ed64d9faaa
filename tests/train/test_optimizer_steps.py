"""Which optimizers are heard of, and for how long."""

from __future__ import annotations

import gc
import importlib
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tests.doors import OptimizerSteps


class Passing(Optimizer):
    """Has no groups of its own, as wrappers of training frameworks."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_those_that_train_the_model_are_heard_of_once_as_new_and_others_never() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    heard: list[tuple[Optimizer, str]] = []
    steps = OptimizerSteps(lambda optimizer: heard.append((optimizer, steps.grown())))
    steps.listen(model)
    model(torch.ones(4)).sum().backward()
    own, foreign = torch.optim.SGD(model.parameters()), torch.optim.SGD(other.parameters())
    for optimizer in (own, foreign, Passing(own)):
        optimizer.step()
    assert heard == [(own, "SGD"), (own, "")]
    assert steps.optimizers == [own]
    steps.close()
    own.step()
    assert len(heard) == 2


def test_one_that_trains_new_parameters_is_told_of_again() -> None:
    model = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    steps = OptimizerSteps(lambda _: None)
    steps.listen(model)
    optimizer = torch.optim.AdamW(model.parameters())
    told = []
    for part in (0, 0, 1, 0):
        optimizer.zero_grad()
        model[part](torch.ones(4)).sum().backward()
        optimizer.step()
        told.append(steps.grown())
    assert told == ["AdamW", "", "AdamW", ""]


def test_it_keeps_neither_model_nor_optimizer_alive_and_goes_with_its_owner() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    steps = OptimizerSteps(lambda _: None)
    steps.listen(model)
    optimizer.step()
    alive = [weakref.ref(each) for each in (model, optimizer, steps)]
    hooks: Any = vars(importlib.import_module("torch.optim.optimizer"))["_global_optimizer_post_hooks"]
    before = len(hooks)
    del model, optimizer
    gc.collect()
    assert [each() is None for each in alive] == [True, True, False]
    assert steps.optimizers == []
    del steps
    gc.collect()
    assert alive[2]() is None
    assert len(hooks) == before - 1
