"""Every module of torch.nn, with the inputs that torch's own tests give it: its step under a plan is the plain one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from autockpt import NotApplicable, Plan
from tests.doors import install

pytest.importorskip("expecttest", reason="torch's list of modules needs it")
from torch.testing._internal.common_modules import module_db


class Around(nn.Module):
    """Makes the arguments of a module non-leaf tensors, and a loss of its results."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, args: Any, kwargs: Any) -> Tensor:
        args, kwargs = tree_map_only(Tensor, lambda each: each * 1 if each.requires_grad else each, (args, kwargs))
        found = [each for each in tree_leaves(self.inner(*args, **kwargs)) if isinstance(each, Tensor)]
        floating = [each.abs() if each.is_complex() else each for each in found if each.requires_grad]
        total = torch.zeros(())
        for each in floating:
            weights = torch.linspace(0.5, 1.5, each.numel(), dtype=each.dtype).view(each.shape)
            total = total + (each.nan_to_num() * weights).sum()
        return total


def variants(info: Any, training: bool) -> Iterator[tuple[nn.Module, Any]]:
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    for each in inputs:
        if each.forward_input is not None:
            built = each.constructor_input
            yield info.module_cls(*built.args, **built.kwargs).train(training), each.forward_input


def step(model: nn.Module, given: Any) -> list[Tensor | None]:
    torch.manual_seed(5)
    args, kwargs = tree_map_only(
        Tensor, lambda each: each.detach().clone().requires_grad_(each.requires_grad), (given.args, given.kwargs)
    )
    loss = model(args, kwargs)
    if loss.requires_grad:
        loss.backward()
    inputs = [each.grad for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    own = [each.grad for each in model.parameters()]
    return [loss.detach(), *inputs, *own, *model.buffers(), torch.get_rng_state()]


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_a_step_of_it_is_the_plain_one(info: Any, training: bool) -> None:
    n_compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, given in variants(info, training):
            plain, planned = Around(module), Around(copy.deepcopy(module))
            try:
                expected = step(plain, given)
            except (RuntimeError, NotImplementedError):
                continue  # it has no backward here
            try:
                install(planned, Plan.of(["inner"]))
            except NotApplicable:
                continue  # RReLU, and what is lazy
            found = step(planned, given)
            assert len(found) == len(expected) and all(map(equal, expected, found)), (given, module)
            n_compared += 1
    if not n_compared:
        pytest.skip("none of its variants has a step")
