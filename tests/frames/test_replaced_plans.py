"""A plan with units that is replaced or taken off between forward and backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan
from tests.doors import Handle, Installation, Reference, govern, install, patched_forward, uninstall, watching_replays
from tests.frames.models import WIDTH, batch, summed
from tests.frames.test_units import plan, stack
from tests.toys.told import Told, with_linear
from tests.twin import counting_replays


@pytest.mark.parametrize(
    "then",
    [
        None,
        Plan(),
        plan(["blocks.1"], ["blocks.1.mlp.up"]),
        plan(["blocks.0"], ["blocks.0.norm", "blocks.0/gelu"], ["blocks.0.mlp.down"]),
    ],
    ids=["none", "nothing", "another block", "other units"],
)
def test_a_plan_that_is_replaced_before_backward(then: Plan | None) -> None:
    """Replays met no units, or those of the other plan: two forwards of different lengths within one budget."""
    found = []
    for planned in (False, True):
        torch.manual_seed(1)
        model = stack()
        if planned:
            units = ["blocks.0.out", "blocks.0/scaled_dot_product_attention", "blocks.0.mlp.up"]
            install(model, plan(["blocks.0"], units))
        loss = summed(model)
        if planned and then is None:
            uninstall(model)
        elif planned and then is not None:
            install(model, then)
        before = [dict(module.__dict__) for module in model.modules()]
        with counting_replays() as replays:
            (loss + model(batch(8, WIDTH)).sum()).backward()
        assert bool(replays) == planned
        assert [dict(module.__dict__) for module in model.modules()] == before
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(one is not None and torch.equal(one, other) for one, other in zip(*found, strict=True))


class Fixed:
    """A governor that never changes its mind."""

    handle: Handle

    def train(
        self, root: nn.Module, name: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return patched_forward(forward, Reference(root), name, self.handle, *args, **kwargs)

    def pause(self, name: str, arguments: object) -> None:
        pass

    def resume(self, model: nn.Module) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_governed_model_gets_another_plan_before_backward() -> None:
    """A frame keeps the table that it was made under; what is patched already stays as it is."""
    plans = [
        plan(["blocks.0"], ["blocks.0.out", "blocks.0/gelu", "blocks.0.mlp.up"]),
        plan(["blocks.0"], ["blocks.0.qkv"], ["blocks.0.mlp.down", "blocks.0.dropout#1", "blocks.0/add#1"]),
    ]
    found = []
    for planned in (False, True):
        torch.manual_seed(1)
        model, governor = stack(), Fixed()
        if planned:
            govern(model, governor, plans[0])
        with watching_replays(model) as replayed:
            loss = summed(model)
            if planned:
                patches = {name: vars(module).get("forward") for name, module in model.named_modules()}
                Installation(governor.handle).replace(model, plans[1])
                after = {name: vars(module).get("forward") for name, module in model.named_modules()}
                assert all(after[name] is patch for name, patch in patches.items() if patch is not None)
            (loss + model(batch(8, WIDTH)).sum()).backward()
        keys = [{key for key in keys if "/" in key or key.count(".") > 1} for keys in replayed]
        if planned:
            assert sorted(map(len, keys)) == [3, 4] and "blocks.0#0/gelu#0" in keys[1] | keys[0]
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(one is not None and torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_child_of_a_watched_call_is_not_taken_for_it_once_the_plan_is_off() -> None:
    """What a child called counted as its caller's own code, so that another function's result was handed out."""

    def watched() -> nn.Module:
        shifts = Told(lambda own, x: x + torch.ones_like(x))
        return with_linear(lambda own, x: own.linear((own.shifts(x) + x).sin()), shifts=shifts)

    found = []
    for planned in (False, True):
        model = stack(watched)
        if planned:
            install(model, plan(["blocks.1"], ["blocks.1/add"]))
        loss = summed(model)
        uninstall(model)
        with counting_replays() as replays:
            loss.backward()
        assert len(replays) == planned
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(one is not None and torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_replays_in_two_threads_of_a_plan_that_is_off_leave_nothing_behind() -> None:
    """The first to leave took off what the second had put on, which then put back what it had found."""
    first_inside, second_inside, first_left = threading.Event(), threading.Event(), threading.Event()

    def meet() -> None:
        if threading.current_thread().name == "first":
            first_inside.set()
            assert second_inside.wait(30)
        elif threading.current_thread().name == "second":
            second_inside.set()
            assert first_left.wait(30)

    def meets(own: Told, x: Tensor) -> Any:
        x = own.kept(x).sin()
        meet()
        return own.linear(x.sin())

    def first() -> None:
        losses[0].backward()
        first_left.set()

    def second() -> None:
        assert first_inside.wait(30)
        losses[1].backward()

    model = stack(lambda: with_linear(meets, kept=nn.Linear(WIDTH, WIDTH)), depth=1)
    install(model, plan(["blocks.0"], ["blocks.0.kept"]))
    losses = [summed(model), summed(model)]
    uninstall(model)
    threads = [threading.Thread(target=first, name="first"), threading.Thread(target=second, name="second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first_left.is_set() and second_inside.is_set()
    assert not [name for name, module in model.named_modules() if "forward" in module.__dict__]
