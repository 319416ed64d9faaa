"""What goes wrong in a step, or runs beside it: the loop goes on, and so does the model."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops.models import Compiled, Network, loss_of, network
from tests.loops.twin import Run, held, one, steps, train
from tests.rows import swept


class Unlucky(RuntimeError):
    """What a step may raise."""


def raising(kind: type[BaseException]) -> Any:
    def hook(*_: object) -> None:
        raise kind

    return hook


def abandoned(run: Run, batch: Tensor, kind: type[BaseException], *, backward: bool) -> None:
    """Begin a step that ends in an exception half way, and let go of it as loops do."""
    hooked: nn.Module = run.model.blocks[2]  # type: ignore[index,assignment]
    handle = (
        hooked.register_full_backward_hook(raising(kind)) if backward else hooked.register_forward_hook(raising(kind))
    )
    try:
        with pytest.raises(kind):
            loss_of(run.model(batch)).backward()
    finally:
        handle.remove()
    run.note_gradients()
    run.optimizer.zero_grad()


@swept(
    "kind, where, after",
    (Unlucky, "forward", 0),
    (KeyboardInterrupt, "backward", 0),
    (Unlucky, "backward", 2),
    (KeyboardInterrupt, "forward", 5),
    *((kind, where, 1) for kind in (Unlucky, KeyboardInterrupt) for where in ("forward", "backward")),
    (Unlucky, "forward", 2),
    (Unlucky, "backward", 5),
    kept=4,
)
def test_an_exception_in_a_step(kind: type[BaseException], where: str, after: int) -> None:
    def loop(run: Run) -> None:
        train(run, steps()[:after])
        abandoned(run, steps()[0], kind, backward=where == "backward")
        train(run, steps(10)[after:])

    held(network, loop, planned_by=max(after, 1) + 4)


def test_a_step_in_four_fails() -> None:
    def loop(run: Run) -> None:
        for number, batch in enumerate(steps(12)):
            if number % 4 == 1:
                abandoned(run, batch, Unlucky, backward=number % 8 == 1)
            train(run, [batch])

    held(network, loop, planned_by=6)


def test_a_batch_that_the_model_refuses_comes_first() -> None:
    def loop(run: Run) -> None:
        with pytest.raises(RuntimeError):
            run.model(torch.zeros(4, 31))
        train(run, steps())

    held(network, loop)


def profiled(run: Run, batch: Tensor, profile_memory: bool) -> None:
    def work() -> Tensor:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=profile_memory):
            return one(run, batch)

    run.step(work, batch)


@swept(
    "number, memory",
    (1, True),
    (2, False),
    (1, False),
    (2, True),
    *((number, memory) for number in (3, 4) for memory in (False, True)),
    kept=2,
)
def test_a_profiler_of_the_users(number: int, memory: bool) -> None:
    def loop(run: Run) -> None:
        train(run, steps()[: number - 1])
        profiled(run, steps()[number - 1], memory)
        train(run, steps(10)[number:])

    held(network, loop, planned_by=number + 4)


def test_a_profiler_that_begins_inside_the_first_step() -> None:
    def loop(run: Run) -> None:
        def work() -> Tensor:
            loss = loss_of(run.model(steps()[0]))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                loss.backward()
            run.update()
            return loss

        run.step(work)
        train(run, steps()[1:])

    held(network, loop, planned_by=5)


def test_a_profiler_over_the_first_three_steps() -> None:
    def loop(run: Run) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            train(run, steps()[:3])
        train(run, steps(10)[3:])

    held(network, loop, planned_by=7)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_detector_of_anomalies() -> None:
    def loop(run: Run) -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            train(run, steps(3))
        train(run, steps()[3:])

    held(network, loop)


@pytest.mark.parametrize("same", [False, True], ids=["a copy", "the model itself"])
def test_a_second_thread_that_evaluates(same: bool) -> None:
    """It draws nothing, so that the generators of the two runs are alike."""

    def loop(run: Run) -> None:
        other = run.model if same else Network(dropout=0.0).eval()
        done, began, found = threading.Event(), threading.Event(), []

        def evaluate() -> None:
            while not done.wait(0.001):
                with torch.no_grad():
                    found.append(other.body(torch.zeros(16, 64)))  # type: ignore[operator]
                began.set()

        thread = threading.Thread(target=evaluate)
        thread.start()
        try:
            began.wait()
            run.unsettle(8)
            train(run, steps())
        finally:
            done.set()
            thread.join()
        assert all(each.isfinite().all() for each in found)
        found.clear()
        train(run, steps())

    held(partial(Network, dropout=0.0), loop)


def test_a_thread_that_trains() -> None:
    """As in notebooks, and in trainers that run their loop in a thread of their own."""

    def loop(run: Run) -> None:
        for batch in steps():
            thread = threading.Thread(target=train, args=(run, [batch]))
            thread.start()
            thread.join()

    found = held(network, loop)
    assert found.said == ""


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.sweep)])
@pytest.mark.filterwarnings("ignore")
def test_submodules_that_are_compiled(backend: str) -> None:
    if backend == "inductor":
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            torch.compile(torch.sin, backend=backend)(torch.zeros(4))
        except InvalidCxxCompiler:
            pytest.skip("there is no C++ compiler")
    held(partial(Compiled, backend), lambda run: train(run, steps()), planned_by=5)


NEXT, OVER = "the next one fails", "the step is over"
FAILING = (((1,), NEXT), ((5,), OVER), ((0, 1), OVER), ((1, 2), NEXT))
"""Numbers of steps that fail, and until when what they returned is held."""


@swept("failing, until", *FAILING, *((which, OVER if until == NEXT else NEXT) for which, until in FAILING), kept=4)
def test_outputs_of_a_step_that_failed_are_held(failing: tuple[int, ...], until: str) -> None:
    """So the recording beside them holds two graphs, which no plan does."""

    def loop(run: Run) -> None:
        outputs: list[Tensor] = []
        for number, batch in enumerate(steps(10)):
            if number in failing:
                outputs = [run.model(batch)]
                assert outputs[0].requires_grad  # here it fails, and the loop goes on to the next batch
            run.step(lambda batch=batch: one(run, batch), batch)  # type: ignore[misc]
            if until == OVER:
                outputs.clear()

    held(network, loop, planned_by=4 + len(failing))
