"""Recordings and measurements in several threads, and interrupted ones: torch is as it was, and the next one works."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import autockpt
from tests.doors import torch_private
from tests.toys.told import Told

BATCH = torch.randn(64, 32)

PATIENCE_SECONDS = 600
"""After which threads that wait for each other are said to; nothing that goes on takes so long."""


def stack() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)))


def step(model: nn.Module, then: threading.Event | None = None) -> None:
    model(BATCH).square().mean().backward()
    if then is not None:
        then.set()


def steps(model: nn.Module, number: int = 3) -> None:
    for _ in range(number):
        model.zero_grad()
        step(model)


def in_threads(*works: Callable[[], object]) -> None:
    raised: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert raised == []


def assert_torch_is_as_it_was() -> None:
    assert torch.autograd.profiler._enable_profiler.__module__ == "torch._C._autograd"  # type: ignore[attr-defined]
    with torch.profiler.profile() as profiler:
        torch.ones(3).add_(1)
    assert len(list(profiler.events() or ())) > 0


def test_two_models_are_planned_in_two_threads() -> None:
    """Who finds that the other records spills its step, and is recorded later."""
    for _ in range(3):
        models = [autockpt.apply(stack(), budget="lowest") for _ in range(2)]

        def train(model: nn.Module) -> None:
            while autockpt.plan_of(model) is None:
                steps(model, 1)

        in_threads(*(partial(train, model) for model in models))
        plans = [autockpt.plan_of(model) for model in models]
        assert all(plan is not None and plan.segments for plan in plans)
    assert_torch_is_as_it_was()


class Between(nn.Module):
    """Does something once, in the midst of a forward or of a backward."""

    def __init__(self, work: Callable[[], object], *, in_backward: bool) -> None:
        super().__init__()
        self.work, self.in_backward = [work], in_backward

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.in_backward and hidden.requires_grad:
            hidden.register_hook(lambda _: self.work.pop()() if self.work else None)
        elif self.work and not self.in_backward:
            self.work.pop()()
        return hidden


@pytest.mark.parametrize("in_backward", [False, True])
def test_a_model_that_takes_a_step_while_another_is_recorded_is_planned_later(in_backward: bool) -> None:
    other = autockpt.apply(stack(), budget="lowest")
    between = Between(lambda: in_threads(lambda: steps(other, 1)), in_backward=in_backward)
    model = autockpt.apply(nn.Sequential(stack(), between, stack()), budget="lowest")
    steps(model, 6)
    assert not between.work
    assert autockpt.plan_of(model) is not None and autockpt.plan_of(other) is None
    steps(other, 6)
    assert autockpt.plan_of(other) is not None
    assert_torch_is_as_it_was()


def test_recordings_and_measurements_wait_for_each_other() -> None:
    models = [stack() for _ in range(4)]
    in_threads(
        lambda: autockpt.profile(models[0], BATCH),
        lambda: autockpt.measure(lambda: step(models[1]), device="cpu"),
        lambda: autockpt.profile(models[2], BATCH, mode="fake"),
        lambda: autockpt.measure(lambda: step(models[3]), device="cpu"),
    )
    assert_torch_is_as_it_was()


def test_other_threads_train_while_one_records() -> None:
    trained = threading.Event()
    model = stack()

    def waits(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        assert trained.wait(PATIENCE_SECONDS)
        return hidden

    planned = autockpt.apply(stack(), plan=autockpt.Plan.of(["1"]))
    in_threads(
        lambda: autockpt.profile(nn.Sequential(model, Told(waits)), BATCH),
        partial(step, planned, trained),
    )


def test_a_profiler_in_another_thread_puts_the_plan_off(caplog: pytest.LogCaptureFixture) -> None:
    model = autockpt.apply(stack(), budget="lowest")
    with torch.profiler.profile():
        in_threads(lambda: step(model))
        assert autockpt.plan_of(model) is None
        assert "a later one will be" in caplog.text
    steps(model)
    assert autockpt.plan_of(model) is not None


def test_a_thread_that_ends_in_the_midst_of_a_recording_leaves_nothing_on() -> None:
    model = autockpt.apply(stack(), budget="lowest")
    in_threads(lambda: steps(model, 1))
    steps(model)
    assert autockpt.plan_of(model) is not None
    model = autockpt.apply(stack(), budget="lowest")
    in_threads(lambda: steps(model, 1))
    autockpt.measure(lambda: step(stack()), device="cpu")
    assert_torch_is_as_it_was()


def test_another_thread_may_call_the_model_that_is_being_recorded() -> None:
    model, twin = stack(), stack()
    twin.load_state_dict(model.state_dict())
    autockpt.apply(model, budget="lowest")
    loss = model(BATCH).square().mean()
    found: list[torch.Tensor] = []
    in_threads(lambda: found.append(model(BATCH).square().mean()))
    assert torch.equal(loss, found[0])
    loss.backward()
    twin(BATCH).square().mean().backward()
    gradients = [[each.grad for each in one.parameters() if each.grad is not None] for one in (model, twin)]
    assert all(map(torch.equal, *gradients))
    steps(model, 4)
    assert autockpt.plan_of(model) is not None


def test_live_objects_are_looked_for_while_other_threads_make_tuples() -> None:
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            tuple(each for each in range(300))

    def measure() -> None:
        try:
            for _ in range(3):
                autockpt.measure(partial(step, stack()), device="cpu")
        finally:
            stop.set()

    in_threads(make, measure)


def test_no_step_that_begins_looks_at_tensors_that_another_thread_may_be_ending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that is found while torch ends it is ended twice: in one of some hundred steps the process died."""
    caplog.set_level("INFO", "autockpt")
    found = threading.Event()
    model = autockpt.apply(stack(), budget="lowest")

    def train() -> None:
        steps(model, 2)
        found.set()

    in_threads(train, lambda: found.wait(PATIENCE_SECONDS))
    (line,) = [each for each in caplog.messages if each.startswith("recorded a step")]
    assert "beside" not in line


class Interrupt(BaseException):
    pass


@contextmanager
def watching_calls(then: Callable[[int], object]) -> Iterator[None]:
    """Tell of every call of a Python function, by its number: at such places a signal is handled too."""
    numbers = itertools.count()

    def look(_: FrameType, event: str, __: object) -> None:
        if event == "call":
            then(next(numbers))

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that comes in a __del__ is lost
def test_an_interrupted_recording_leaves_nothing_on() -> None:
    model = stack()
    autockpt.profile(model, BATCH)  # what is done once is done
    counted: deque[int] = deque(maxlen=1)
    with watching_calls(counted.append):
        autockpt.profile(model, BATCH)
    attributes = {name: sorted(vars(module)) for name, module in model.named_modules()}
    interrupted = 0
    for place in range(0, counted[0], counted[0] // 50):

        def interrupt(number: int, place: int = place) -> None:
            if number == place:
                raise Interrupt

        try:
            with watching_calls(interrupt):
                autockpt.profile(model, BATCH)
        except Interrupt:
            interrupted += 1
        assert torch.is_grad_enabled(), f"gradients stay off after an interrupt in call {place}"
        assert torch_private.modes_on() == ([], [], None), f"a mode stays on after an interrupt in call {place}"
        assert {name: sorted(vars(module)) for name, module in model.named_modules()} == attributes
    assert interrupted > 25
    assert_torch_is_as_it_was()
    in_threads(lambda: autockpt.profile(model, BATCH))


CONTEXTS = (TorchFunctionMode, TorchDispatchMode, torch.autograd.graph.saved_tensors_hooks)


def test_an_interrupt_in_the_midst_of_a_modes_own_context_leaves_none_on() -> None:
    """Torch puts a mode on, and an interrupt comes before it has said so: nobody ended it, and compilers traced it."""
    model = stack()
    autockpt.profile(model, BATCH)
    places = [0]

    def interrupting(at: int) -> Callable[[FrameType, str, object], None]:
        passed = itertools.count()

        def look(frame: FrameType, event: str, _: object) -> None:
            inside = isinstance(frame.f_locals.get("self"), CONTEXTS)
            if event in ("call", "return") and inside and frame.f_code.co_name in ("__enter__", "__exit__"):
                places[0] = next(passed)
                if places[0] == at:
                    raise Interrupt

        return look

    def record(at: int) -> None:
        sys.setprofile(interrupting(at))
        try:
            autockpt.profile(model, BATCH)
        finally:
            sys.setprofile(None)

    record(-1)
    for at in range(0, places[0], max(places[0] // 40, 1)):
        with contextlib.suppress(Interrupt):
            record(at)
        assert torch_private.modes_on() == ([], [], None)
        assert torch.is_grad_enabled()
    assert_torch_is_as_it_was()
