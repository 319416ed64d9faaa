"""With the garbage collector off, steps leave nothing behind, however they end."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from tests.doors import Checking, Frame
from tests.frames.comparing import steps
from tests.frames.models import WIDTH, Tower, batch, summed
from tests.frames.test_lifetime import events
from tests.rows import daily
from tests.toys.told import Told

STEPS = 200
PLAN = Plan.of([["blocks.0", "blocks.1", "blocks.2"], "blocks.3.first"])


@pytest.fixture(autouse=True)
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Any]:
    """Every frame that is made from now on, as long as it lives."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    plain = Frame.__init__

    def init(self: Frame, *given: Any) -> None:
        plain(self, *given)
        alive.add(self)

    monkeypatch.setattr(Frame, "__init__", init)
    return alive


def live_tensors() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())  # isinstance asks lazy proxies


def planned(check: Checking = "always") -> Any:
    """A model with code and random numbers between its members."""
    return autockpt.apply(Tower(), plan=PLAN, check=check)


def trained(model: nn.Module) -> None:
    summed(model).backward()


def forward_only(model: nn.Module) -> None:
    summed(model)


def retained(model: nn.Module) -> None:
    loss = summed(model)
    loss.backward(retain_graph=True)
    loss.backward()


def retained_and_dropped(model: nn.Module) -> None:
    summed(model).backward(retain_graph=True)


def twice_differentiated(model: nn.Module) -> None:
    gradients = torch.autograd.grad(summed(model), list(model.parameters()), create_graph=True)
    torch.stack([gradient.square().sum() for gradient in gradients]).sum().backward()


def in_part(model: nn.Module) -> None:
    torch.autograd.grad(summed(model), list(model.get_submodule("blocks.2").parameters()))


def broken(where: str, kind: type[BaseException]) -> Callable[[nn.Module], None]:
    """Return a step that an error ends: between two members, in one, in backward, or in a replay."""

    def fail(*_: Any) -> None:
        if where != "replay" or autockpt.is_recomputing():
            raise kind

    def step(model: nn.Module) -> None:
        name = {"between": "blocks.2", "member": "blocks.1.second", "replay": "blocks.1.second"}.get(where)
        handle = model.get_submodule(name).register_forward_pre_hook(fail) if name else None
        try:
            loss = summed(model)
            if where == "backward":
                model.get_submodule("blocks.1").get_parameter("first.weight").register_hook(fail)
            loss.backward()
            raise AssertionError("it went through")
        except kind:
            pass
        finally:
            if handle is not None:
                handle.remove()
            for parameter in model.parameters():
                parameter._backward_hooks = None  # the hook of "backward"

    return step


WAYS: dict[str, Callable[[nn.Module], None]] = {
    "to the end": trained,
    "forward only": forward_only,
    "backward, and again": retained,
    "first of two": retained_and_dropped,
    "gradients of gradients": twice_differentiated,
    "in part": in_part,
    **{
        f"{kind.__name__} in {where}": broken(where, kind)
        for kind in (RuntimeError, KeyboardInterrupt)
        for where in ("between", "member", "backward", "replay")
    },
}


DAILY = ("to the end", "gradients of gradients", "RuntimeError in backward", "KeyboardInterrupt in replay")
"""Ways that take two hundred steps every day; the others do in the sweep, and all take three every day (below)."""


@pytest.mark.parametrize("way", daily(WAYS, DAILY))
def test_two_hundred_steps_leave_nothing_behind(way: str, frames: weakref.WeakSet[Any]) -> None:
    model = planned("never" if way == "RuntimeError in replay" else "always")  # no error leaves a rehearsal
    step = WAYS[way]
    for _ in range(3):
        step(model)
        model.zero_grad()
    before = live_tensors()
    for _ in range(STEPS):
        step(model)
        model.zero_grad()
    # An error in backward, with the frames of its traceback, stays with torch until the next one: in plain steps too.
    assert len(frames) <= way.endswith(("backward", "replay"))
    assert live_tensors() == before


@pytest.mark.parametrize("way", WAYS)
def test_a_model_is_as_good_as_new_after_steps_of_any_kind(way: str) -> None:
    model = planned("never" if way == "RuntimeError in replay" else "always")  # no error leaves a rehearsal

    def both() -> None:
        for _ in range(3):
            WAYS[way](model)
            model.zero_grad()

    events(both)
    assert events(both)[-1] == 0  # bytes, of what C++ holds too
    assert not autockpt.is_recomputing()
    model.step = 0
    assert steps(autockpt.remove(copy.deepcopy(model)), summed).differences(steps(model, summed)) == []


def test_a_frame_is_not_kept_by_the_outputs_of_its_calls(frames: weakref.WeakSet[Any]) -> None:
    kept = []
    model = planned()
    for _ in range(3):
        out = model(batch(4, WIDTH))
        out.sum().backward()
        kept.append(out)  # as a loop does that collects losses without detaching them
    assert not frames


def test_two_threads_share_no_frame(frames: weakref.WeakSet[Any]) -> None:
    models = [planned("never"), planned("never")]  # they draw from one generator, in turns that differ
    turns = threading.Barrier(2)
    seen: list[list[Any]] = [[], []]
    errors: list[BaseException] = []

    def train(index: int) -> None:
        try:
            for _ in range(20):
                loss = summed(models[index])
                turns.wait(timeout=60)  # both are between forward and backward
                seen[index].append(autockpt.is_recomputing())
                loss.backward()
        except BaseException as error:
            errors.append(error)
            turns.abort()

    threads = [threading.Thread(target=train, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert not frames
    assert seen == [[False] * 20] * 2


def test_threads_that_draw_from_one_generator_end_in_a_named_error() -> None:
    """A replay draws what one thread would have; the other one's draws in between are not to be had again."""

    beside: list[int] = []

    def draws(own: Told, x: Tensor) -> Tensor:
        x = x * torch.rand_like(x)
        if beside and not autockpt.is_recomputing():
            thread = threading.Thread(target=torch.rand, args=(3,))
            thread.start()
            thread.join()
        return x * torch.rand_like(x)

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Told(draws), nn.Tanh())
    autockpt.apply(model, plan=Plan.of(["1"]), check="always")
    summed(model).backward()
    beside.append(1)
    loss = summed(model)
    with pytest.raises(autockpt.ReplayError, match=r"1#0 saved other values .* keep='1'"):
        loss.backward()
    summed(model).backward()  # the call is kept from now on


def test_one_thread_replays_while_the_other_is_in_forward() -> None:
    """What a thread knows about replays is its own."""
    in_replay, may_go_on = threading.Event(), threading.Event()
    answers = []

    def waits(own: Told, x: Tensor) -> Tensor:
        if autockpt.is_recomputing():
            in_replay.set()
            may_go_on.wait(timeout=60)
        return x.exp()

    model = autockpt.apply(nn.Sequential(nn.Linear(WIDTH, WIDTH), Told(waits), nn.Tanh()), plan=Plan.of([["1", "2"]]))
    loss = summed(model)
    other = planned()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    assert in_replay.wait(timeout=60)
    answers.append(autockpt.is_recomputing())
    trained(other)
    may_go_on.set()
    thread.join()
    assert answers == [False]
    assert model[0].weight.grad is not None


def test_a_model_dies_with_its_last_reference() -> None:
    for keep in ((), ("blocks.0.first#0",), ("blocks.0#0/add#0",)):
        model = Tower(2)
        autockpt.apply(model, plan=Plan(segments=(autockpt.Segment(calls=("blocks.0#0",), keep=keep),)))
        summed(model).backward()
        modules = [weakref.ref(module) for module in model.modules()]
        autockpt.remove(model)
        del model
        assert [module() for module in modules if module() is not None] == []
