"""Threads that share a model: one saves it, or trains it too, while another replays."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan, is_recomputing
from tests.doors import Undo, install, take_back
from tests.run.frames.comparing import counted_replays
from tests.run.frames.models import WIDTH, summed


def normalised(depth: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU()) for _ in range(depth))
    return nn.Sequential(*blocks)


def planned(model: nn.Module) -> nn.Module:
    install(model, Plan.of([name for name, _ in model.named_children()]))
    return model


def run_all(*targets: Callable[[], object]) -> list[BaseException]:
    """Run each in a thread of its own to its end; return what they raised."""
    errors: list[BaseException] = []

    def guarded(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    # Daemons, so that a deadlock fails the test and does not hang the run.
    threads = [threading.Thread(target=guarded, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    return errors


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns in the midst of everything."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Yielding(dict[str, Tensor | None]):
    """Lets another thread run whenever it has lost entries, which would otherwise be rare."""

    def clear(self) -> None:
        super().clear()
        time.sleep(0.001)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        time.sleep(0.001)

    def pop(self, name: str, *default: Any) -> Any:
        value = super().pop(name, *default)
        time.sleep(0.001)
        return value


@pytest.mark.usefixtures("hasty")
def test_a_thread_that_saves_beside_the_training_finds_every_entry() -> None:
    """A replay emptied the dicts of buffers for a moment; a state_dict taken then missed entries, without a word."""
    plain = normalised()
    model = planned(copy.deepcopy(plain))
    for module in model.modules():
        module._buffers = Yielding(module._buffers)
    entries = list(plain.state_dict())
    wrong: list[list[str]] = []
    enough, taken = threading.Event(), []

    def save() -> None:
        try:
            for _ in range(10_000):
                found = list(model.state_dict())
                if found != entries:
                    wrong.append(found)
            taken.append(10_000)
        finally:
            enough.set()

    n_steps = 0

    def train() -> None:
        nonlocal n_steps
        while not enough.is_set():
            summed(model).backward()
            n_steps += 1

    with counted_replays() as count:
        assert run_all(save, train) == []
    assert count() == 4 * n_steps
    assert taken and n_steps and wrong == []
    for _ in range(n_steps):
        summed(plain).backward()
    expected, left = plain.state_dict(), model.state_dict()
    assert list(left) == list(expected)
    assert [name for name in expected if not torch.equal(left[name], expected[name])] == []
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


@pytest.mark.usefixtures("hasty")
def test_threads_that_train_one_model_each_find_and_leave_every_entry() -> None:
    """Replays in several threads took each other's scratch copies for the model's own buffers, or found none at all."""
    model = normalised().eval()
    summed(model.train())  # statistics that are not those of a new module
    model.eval()
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    entries = list(model.state_dict())
    expected = torch.autograd.grad(summed(model), list(model.parameters()))
    planned(model)

    def train() -> None:
        for _ in range(100):
            found = torch.autograd.grad(summed(model), list(model.parameters()))
            assert all(map(torch.equal, expected, found))

    assert run_all(*[train] * 4) == []
    assert list(model.state_dict()) == entries
    for name, buffer in model.named_buffers():
        own, value = before[name]
        assert buffer is own and torch.equal(buffer, value), name


class Slow(nn.Module):
    """Is so slow in its replays that those of several threads overlap, if they may."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x).sin()
        if is_recomputing():
            time.sleep(0.02)
        return x.sin()


def test_threads_that_run_backward_at_once_leave_the_models_own_buffers() -> None:
    """In training: every forward has run, and only replays meet."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), Slow(), nn.Linear(WIDTH, WIDTH))
    model = planned(copy.deepcopy(plain))
    own = dict(model.named_buffers())
    for _ in range(3):
        losses = [summed(model) for _ in range(4)]
        assert run_all(*(loss.backward for loss in losses)) == []
        for _ in range(4):
            summed(plain)
    for name, buffer in model.named_buffers():
        assert buffer is own[name] and torch.equal(buffer, plain.get_buffer(name)), name


class Differentiating(nn.Module):
    """Differentiates a graph from outside in its replay, which replays the frames of that graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.graph: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if is_recomputing() and self.graph:
            torch.autograd.grad(self.graph.pop(), list(self.inner.parameters()))
        return out.sin()


def test_a_replay_inside_a_replay_of_the_same_module_does_not_wait_for_itself() -> None:
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), Differentiating(normalised(1)), nn.Linear(WIDTH, 1))
    model: Any = copy.deepcopy(plain)
    install(model, Plan.of(["1"]))

    def train() -> None:
        model[1].graph.append(summed(model))
        summed(model).backward()

    with counted_replays() as count:
        assert run_all(train) == []
    assert count() == 2 and not model[1].graph
    summed(plain)
    summed(plain).backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)
    assert all(map(torch.equal, plain.buffers(), model.buffers()))


class Meeting(nn.Module):
    """Waits in its replay for the replay of another thread."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.meet = barrier.wait

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x).sin()
        if is_recomputing():
            self.meet(30)
        return x.sin()


def test_replays_of_two_models_do_not_wait_for_each_other() -> None:
    """Ranks that are threads meet in the midst of a forward."""
    barrier = threading.Barrier(2)
    models = [planned(nn.Sequential(nn.Linear(WIDTH, WIDTH), Meeting(barrier))) for _ in range(2)]
    losses = [summed(model) for model in models]
    assert run_all(*(loss.backward for loss in losses)) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_replay_that_fails_lets_the_others_go_on(error: type[BaseException]) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fails = nn.BatchNorm1d(WIDTH), [True]

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x).sin()
            if is_recomputing() and self.fails:
                raise error
            return x.sin()

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Failing())
    planned(model)
    losses = [summed(model), summed(model)]
    own = dict(model.named_buffers())
    with pytest.raises(error):
        losses[0].backward()
    model.get_submodule("1").fails.clear()  # type: ignore[union-attr, operator]
    assert run_all(losses[1].backward) == []
    assert all(buffer is own[name] for name, buffer in model.named_buffers())


def test_what_is_put_back_is_put_back_to_the_end_where_that_is_interrupted() -> None:
    """An interrupt that falls into the undoing of one entry must not leave the others."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    done: list[int] = []
    undo: Undo = [(done.append, (0,)), (done.append, (1,)), (interrupted, ()), (done.append, (2,))]
    with pytest.raises(KeyboardInterrupt):
        take_back(undo)
    assert done == [2, 1, 0]


class Restless(nn.Module):
    """Adds buffers in its forward, takes others out, and moves one behind the others."""

    a: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        for number, name in enumerate("abcd"):
            self.register_buffer(name, torch.full((WIDTH,), 1.0 + number))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        a = self.a
        del self.a
        if not is_recomputing():
            self.register_buffer("a", a)
        self.register_buffer(f"new{self.calls}", a + 1)
        if self.calls > 1:
            self._buffers.pop(f"new{self.calls - 1}", None)
        out: Tensor = (self.layer(x) * a).sin().cos()
        return out


@pytest.mark.parametrize("n_steps", [1, 3])
def test_entries_that_a_forward_adds_or_takes_out_are_those_of_the_plain_step(n_steps: int) -> None:
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), Restless())
    model = planned(copy.deepcopy(plain))
    for _ in range(n_steps):
        summed(plain).backward()
        loss = summed(model)
        found = [(name, id(buffer)) for name, buffer in model.named_buffers()]
        loss.backward()
        assert [(name, id(buffer)) for name, buffer in model.named_buffers()] == found  # the order too
        model.get_submodule("1").calls = plain.get_submodule("1").calls
        assert list(model.state_dict()) == list(plain.state_dict())
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


class Reading(nn.Module):
    """Notes in its replay what another thread finds in it."""

    def __init__(self, found: list[list[str]]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.found = found

    def forward(self, x: Tensor) -> Tensor:
        if is_recomputing():
            assert run_all(lambda: self.found.append(list(self.state_dict()))) == []
        out: Tensor = self.norm(x).sin().cos()
        return out


def test_dicts_exchanged_between_forward_and_backward_have_all_entries_in_the_replay_and_after_it() -> None:
    found: list[list[str]] = []
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), Reading(found))
    entries = list(model[1].state_dict())
    planned(model)
    loss = summed(model)
    norm = model[1].norm
    old = norm._buffers, norm._parameters
    norm._buffers, norm._parameters = new = dict(old[0]), dict(old[1])
    for contents in old:
        contents.clear()
    loss.backward()
    assert norm._buffers is new[0] and norm._parameters is new[1]
    assert old == ({}, {})
    assert found and all(names == entries for names in found)
    assert list(model[1].state_dict()) == entries


def test_a_model_that_has_replayed_can_be_copied_and_saved_as_before() -> None:
    model = planned(normalised(1))
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    summed(model).backward()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert list(copy.deepcopy(model).state_dict()) == list(model.state_dict())
