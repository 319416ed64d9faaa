"""Outputs of layers that a library collects in a context variable: replays leave nothing there, and hold nothing."""

from __future__ import annotations

import gc
import weakref
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan, ReplayError, Segment
from tests.doors import install
from tests.frames.comparing import assert_same
from tests.frames.models import summed
from tests.toys.told import Told, with_linear

MADE: list[weakref.ref[Tensor]] = []
COLLECTED: ContextVar[Any] = ContextVar("COLLECTED", default=None)
PLANS = (
    Plan.of([["layers.0", "layers.1"], "layers.2"]),
    Plan(segments=(Segment(calls=("layers.0#0", "layers.1#0", "layers.2#0"), cuts=(0, 1, 1)),)),
)


def collects(own: Told, x: Tensor) -> Any:
    """Appends what it makes to the list of a context variable, and its number to another in it."""
    x = own.linear(x).tanh()
    found = COLLECTED.get()
    found["outputs"].append(x)
    MADE.append(weakref.ref(x))
    found["count"][0] += 1
    return (x * found["count"][0]).tanh()


def collecting(own: Told, x: Tensor) -> Tensor:
    found: Any = {"outputs": [], "count": [0]}
    token = COLLECTED.set(found)
    try:
        x = own.layers(x)
    finally:
        COLLECTED.reset(token)
    assert found["count"] == [3]
    return x + torch.stack(found["outputs"]).sum(0)


def network() -> Told:
    return Told(collecting, layers=nn.Sequential(*(with_linear(collects) for _ in range(3))))


@pytest.mark.parametrize("plan", PLANS, ids=["segments", "parts"])
def test_replays_find_what_forward_found_in_the_list_of_a_context_variable(plan: Plan) -> None:
    """Each would have counted on, and the list would have had its outputs too."""
    assert_same(network(), plan, summed)


def freed(model: nn.Module, *, backward: bool) -> bool:
    """Whether all tensors of a step go with the step, once Python has collected."""
    MADE.clear()
    made = summed(model)
    if backward:
        made.backward()
    del made
    gc.collect()
    return not any(each() is not None for each in MADE)


@pytest.mark.parametrize("backward", [True, False], ids=["backward", "none"])
@pytest.mark.parametrize("plan", PLANS, ids=["segments", "parts"])
def test_nothing_collected_in_a_context_variable_outlives_the_step(plan: Plan, backward: bool) -> None:
    """Mixtral's router logits kept every replay alive: memory grew by a replay's in each step."""
    model = network()
    install(model, plan)
    assert freed(model, backward=backward)


def test_a_replay_that_needs_what_was_collected_says_so() -> None:
    """Nothing else holds it, and no frame does: it may be all that forward made."""
    model = network()
    # It reads what the layers before it put there.
    model.layers.append(Told(lambda own, x: (x * COLLECTED.get()["outputs"][0]).tanh()))
    install(model, Plan.of(["layers.3"]))
    with pytest.raises(ReplayError, match="a tensor in a list or dictionary of a context variable"):
        summed(model).backward()


def seen_twice(own: Told, x: Tensor) -> Any:
    """Adds a number to a set by one name, and counts by the other name of the same set."""
    found = COLLECTED.get()
    found["seen"].add(len(found["seen"]))
    return (own.linear(x) * len(found["also"])).tanh()


def test_a_set_that_occurs_twice_in_a_context_variable_is_one_set_in_a_replay_too() -> None:
    def counting(own: Told, x: Tensor) -> Any:
        seen: set[int] = set()
        token = COLLECTED.set({"seen": seen, "also": seen})
        try:
            return own.layers(x)
        finally:
            COLLECTED.reset(token)

    layers = nn.Sequential(*(with_linear(seen_twice) for _ in range(3)))
    assert_same(Told(counting, layers=layers), PLANS[0], summed)
