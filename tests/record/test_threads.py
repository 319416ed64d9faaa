"""Recordings and measurements in several threads, and interrupted ones: torch is as it was, and the next one works."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import autockpt

BATCH = torch.randn(64, 32)


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

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
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
        models = [autockpt.apply(stack(), budget="min") for _ in range(2)]

        def train(model: nn.Module) -> None:
            for _ in range(100):
                steps(model, 1)
                if autockpt.plan_of(model) is not None:
                    break

        in_threads(*(partial(train, model) for model in models))
        plans = [autockpt.plan_of(model) for model in models]
        assert all(plan is not None and plan.segments for plan in plans)
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

    class Waiting(nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            assert trained.wait(30)
            return hidden

    planned = autockpt.apply(stack(), plan=autockpt.Plan.of(["1"]))
    in_threads(
        lambda: autockpt.profile(nn.Sequential(model, Waiting()), BATCH),
        partial(step, planned, trained),
    )


def test_a_profiler_in_another_thread_puts_the_plan_off(caplog: pytest.LogCaptureFixture) -> None:
    model = autockpt.apply(stack(), budget="min")
    with torch.profiler.profile():
        in_threads(lambda: step(model))
        assert autockpt.plan_of(model) is None
        assert "a later one will be" in caplog.text
    steps(model)
    assert autockpt.plan_of(model) is not None


def test_a_thread_that_ends_in_the_midst_of_a_recording_leaves_nothing_on() -> None:
    model = autockpt.apply(stack(), budget="min")
    in_threads(lambda: steps(model, 1))
    steps(model)
    assert autockpt.plan_of(model) is not None
    model = autockpt.apply(stack(), budget="min")
    in_threads(lambda: steps(model, 1))
    autockpt.measure(lambda: step(stack()), device="cpu")
    assert_torch_is_as_it_was()


def test_another_thread_may_call_the_model_that_is_being_recorded() -> None:
    model, twin = stack(), stack()
    twin.load_state_dict(model.state_dict())
    autockpt.apply(model, budget="min")
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


class Interrupt(BaseException):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that comes in a __del__ is lost
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that interrupt")
def test_an_interrupted_recording_leaves_nothing_on() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    model, rng = stack(), random.Random(0)
    began = time.perf_counter()
    autockpt.profile(model, BATCH)
    seconds = time.perf_counter() - began
    attributes = {name: sorted(vars(module)) for name, module in model.named_modules()}
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for _ in range(25):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, seconds))
                autockpt.profile(model, BATCH)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert {name: sorted(vars(module)) for name, module in model.named_modules()} == attributes
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert_torch_is_as_it_was()
    in_threads(lambda: autockpt.profile(model, BATCH))
