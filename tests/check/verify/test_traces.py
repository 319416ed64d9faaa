"""Verifying leaves everything as it was, and holds nothing."""

from __future__ import annotations

import gc
import itertools
import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, plan_of, verify
from tests.check.verify.models import BATCH, WIDTH, chain, counting, plain_chain
from tests.toys.told import Told, greedy

torch.set_num_threads(1)

BLOCKS = Plan.of(["0", ["1", "2"]])


PATCHED = ("forward", "__reduce_ex__", "__deepcopy__", "compile")
"""What a patch puts into a module's `__dict__`: taken off for the plain steps, and put on anew."""


class State:
    """All that `verify` must leave as it was, by value and by identity."""

    def __init__(self, model: nn.Module, inputs: Tensor) -> None:
        named = [*model.named_parameters(), *model.named_buffers(), ("batch", inputs)]
        self.identities = [id(tensor) for _, tensor in named] + [id(tensor.grad) for _, tensor in named]
        self.tensors = [tensor.detach().clone() for _, tensor in named]
        self.tensors += [tensor.grad.clone() for _, tensor in named if tensor.grad is not None]
        self.tensors += [torch.get_rng_state()]
        self.others = random.getstate(), repr(numpy.random.get_state()), plan_of(model)
        self.attributes = {
            name: {key: repr(value) for key, value in module.__dict__.items() if key not in PATCHED}
            for name, module in model.named_modules()
        }
        self.hooks = [parameter._backward_hooks for parameter in model.parameters()]
        self.flags = [module.training for module in model.modules()]

    def assert_same(self, other: State) -> None:
        assert all(torch.equal(one, two) for one, two in zip(self.tensors, other.tensors, strict=True))
        for name in ("identities", "others", "attributes", "hooks", "flags"):
            assert getattr(self, name) == getattr(other, name), name


def careless(block: Any, hidden: Tensor) -> Tensor:
    """Draws from everywhere, and changes whatever it can reach."""
    block.calls = [block.calls[0] + 1]
    block.extra = hidden.detach()
    block.dropout.eval()
    block.norm.bias.data.mul_(0.5)
    if block.linear.weight.grad is not None:
        block.linear.weight.grad.zero_()
    block.norm.weight.grad = torch.ones(WIDTH)
    return hidden + random.random() + float(numpy.random.rand()) + torch.rand(WIDTH)


class TooMuch(Exception):
    pass


@pytest.mark.parametrize("raises_in", [None, 1, 2, 3], ids=["no error", "first run", "second run", "planned run"])
@pytest.mark.parametrize("applied", [None, BLOCKS], ids=["unplanned", "planned"])
def test_everything_is_put_back(raises_in: int | None, applied: Plan | None) -> None:
    runs = itertools.count()  # which nobody can put back

    def maybe(block: Any, hidden: Tensor) -> Tensor:
        if next(runs) == raises_in:
            raise TooMuch
        return hidden

    model = chain(None, careless, maybe)
    batch = BATCH.clone().requires_grad_()
    model(batch).sum().backward()
    if applied is not None:
        autockpt.apply(model, plan=applied)
    model[0].eval()
    before = State(model, batch)
    if raises_in in (1, 2):
        with pytest.raises(TooMuch):
            verify(model, batch, plan=Plan.of(["0"]))
    else:
        found = verify(model, batch, plan=Plan.of(["0"]))
        assert found.verdict == ("exact" if raises_in is None else "different")
        assert (found.error is None) == (raises_in is None)
    before.assert_same(State(model, batch))


def test_hooks_that_step_an_optimizer_do_not_run() -> None:
    model = plain_chain()
    steps: list[None] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: steps.append(None))
    assert verify(model, BATCH, plan=BLOCKS).exact
    assert steps == []


def test_a_batch_changed_in_place_and_a_generator_passed_as_argument_begin_alike_in_every_run() -> None:
    batch, generator = BATCH.clone(), torch.Generator().manual_seed(1)
    assert verify(greedy(plain_chain()), (batch, generator), plan=Plan.of(["inner.0"]), steps=2).exact
    assert torch.equal(batch, BATCH)


def test_nothing_is_held_afterwards() -> None:
    def tensors() -> int:
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    model = chain(counting, None)
    gc.collect()
    before = tensors()
    gc.disable()
    try:
        assert verify(model, BATCH, plan=Plan.of(["0"])).verdict == "different"
        assert tensors() == before
    finally:
        gc.enable()


def test_what_could_not_be_put_back_is_noted() -> None:
    def remembering(block: Told, hidden: Tensor) -> Tensor:
        history.append(next(numbers))
        return hidden

    history: list[int] = []
    numbers = itertools.count()
    model = chain(remembering, None)
    found = verify(model, BATCH, plan=Plan.of(["1"]))
    assert not history
    assert len(found.notes) == 1
    assert "which could not be put back" in found.notes[0]
    assert f"Notes\n  {found.notes[0]}" in str(found)
