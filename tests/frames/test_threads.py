"""Threads that share a model: one saves it, or trains it too, while another replays."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan, is_recomputing
from tests.doors import Undo, install, take_back
from tests.frames.models import WIDTH, summed
from tests.toys.told import Told, with_linear
from tests.twin import counting_replays

PATIENCE_SECONDS = 600
"""After which threads that wait for each other are said to; nothing that goes on takes so long."""


def normalised(depth: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU()) for _ in range(depth))
    return nn.Sequential(*blocks)


def planned(model: nn.Module) -> nn.Module:
    install(model, Plan.of([name for name, _ in model.named_children()]))
    return model


def run_all_here(*targets: Callable[[], object]) -> list[BaseException]:
    """Run each in this thread; return what they raised."""
    errors: list[BaseException] = []
    for target in targets:
        try:
            target()
        except BaseException as error:
            errors.append(error)
    return errors


def run_all(*targets: Callable[[], object]) -> list[BaseException]:
    """Run each in a thread of its own to its end; return what they raised."""
    errors: list[BaseException] = []

    # Daemons, so that a deadlock fails the test and does not hang the run.
    threads = [
        threading.Thread(target=lambda target=target: errors.extend(run_all_here(target)), daemon=True)
        for target in targets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    return errors


FRAMES = str(Path(inspect.getfile(take_back)).parent)
"""Where what runs and replays segments lies."""


@contextlib.contextmanager
def at_every_line(look: Callable[[], object], *, times: int) -> Iterator[None]:
    """Let the thread stand still at every line of what runs and replays segments, and call `look` there.

    Args:
        look: what happens meanwhile.
        times: how often at one line.
    """
    stood: Counter[tuple[CodeType, int]] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(FRAMES):
            return None
        line = frame.f_code, frame.f_lineno
        if stood[line] < times:
            stood[line] += 1
            look()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
    assert len(stood) > 100


class Losing(dict[str, Tensor | None]):
    """Calls something whenever it has lost entries."""

    def __init__(self, entries: dict[str, Tensor | None], look: Callable[[], object]) -> None:
        super().__init__(entries)
        self.look = look

    def clear(self) -> None:
        super().clear()
        self.look()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.look()

    def pop(self, name: str, *default: Any) -> Any:
        value = super().pop(name, *default)
        self.look()
        return value


def test_a_thread_that_saves_beside_the_training_finds_every_entry() -> None:
    """A replay emptied the dicts of buffers for a moment; a state_dict taken then missed entries, without a word."""
    plain = normalised(2)
    model = planned(copy.deepcopy(plain))
    entries = list(plain.state_dict())
    taken: list[list[str]] = []
    n_steps = 2

    def train() -> None:
        with at_every_line(save, times=16):
            for _ in range(n_steps):
                summed(model).backward()

    with ThreadPoolExecutor(1) as saver:

        def save() -> None:
            taken.append(saver.submit(lambda: list(model.state_dict())).result())

        for module in model.modules():
            module._buffers = Losing(module._buffers, save)
        with counting_replays() as replays:
            assert run_all(train) == []
    assert len(replays) == 2 * n_steps
    assert [found for found in taken if found != entries] == []
    for _ in range(n_steps):
        summed(plain).backward()
    expected, left = plain.state_dict(), model.state_dict()
    assert list(left) == list(expected)
    assert [name for name in expected if not torch.equal(left[name], expected[name])] == []
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


class Shared:
    """A model that several threads train at once, with what all of them must find and leave.

    Args:
        training: whether forwards move its statistics.
        model: the model.
    """

    def __init__(self, model: nn.Module, *, training: bool) -> None:
        summed(model)  # statistics that are not those of a new module
        self.model, self._plain = model.train(training), copy.deepcopy(model)
        self._own, self._entries = dict(model.named_buffers()), list(model.state_dict())
        twin = copy.deepcopy(model)
        self._expected = torch.autograd.grad(summed(twin), list(twin.parameters()))
        self._steps: queue.SimpleQueue[None] = queue.SimpleQueue()
        planned(model)

    def train(self) -> None:
        """Take a step, and find the gradients of the plain one."""
        found = torch.autograd.grad(summed(self.model), list(self.model.parameters()))
        assert all(map(torch.equal, self._expected, found))
        self._steps.put(None)

    def check(self) -> None:
        """Find the model's own buffers, as so many plain steps leave them."""
        for _ in range(self._steps.qsize()):
            summed(self._plain)
        assert list(self.model.state_dict()) == self._entries
        for name, buffer in self.model.named_buffers():
            assert buffer is self._own[name] and torch.equal(buffer, self._plain.get_buffer(name)), name


@pytest.mark.parametrize("training", [False, True])
def test_a_thread_that_trains_while_another_stands_at_any_line_finds_and_leaves_every_entry(training: bool) -> None:
    """Replays in several threads took each other's scratch copies for the model's own buffers, or found none at all."""
    shared = Shared(normalised(1), training=training)

    def train() -> None:
        with at_every_line(lambda: others.submit(shared.train).result(), times=3):
            shared.train()

    with ThreadPoolExecutor(1) as others:
        assert run_all(train) == []
    shared.check()


class Posts:
    """Places inside forwards and replays, at which threads that are told to stand still."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str, bool], tuple[threading.Event, threading.Event]] = {}

    def __deepcopy__(self, _: object) -> Posts:
        return self

    def passed(self, name: str) -> None:
        """Stand still where this thread is to, until it may go on."""
        standing = self._told.pop((threading.get_ident(), name, is_recomputing()), None)
        if standing is not None:
            reached, on = standing
            reached.set()
            assert on.wait(PATIENCE_SECONDS)

    @contextlib.contextmanager
    def standing(self, work: Callable[[], object], place: tuple[str, bool]) -> Iterator[None]:
        """Let a thread of its own do some work, and stand at a place as long as the block runs."""
        reached, on, over = threading.Event(), threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def run() -> None:
            mine = threading.get_ident(), *place
            self._told[mine] = reached, on
            errors.extend(run_all_here(work))
            over.set()
            reached.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert reached.wait(PATIENCE_SECONDS) and not over.is_set(), errors
        try:
            yield
        finally:
            on.set()
            thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive() and errors == []


def post(posts: Posts, name: str) -> nn.Module:
    """A place: in the forwards that pass it, and in their replays."""

    def passes(own: Told, x: Tensor) -> Tensor:
        posts.passed(name)
        return x

    return Told(passes)


@pytest.mark.parametrize("training", [False, True])
def test_threads_that_train_one_model_each_find_and_leave_every_entry(training: bool) -> None:
    """Two stand at any two places, in their forwards or in their replays, while two more train."""
    posts, names = Posts(), [f"{side} the norm of {block}" for block in range(2) for side in ("before", "behind")]
    torch.manual_seed(0)
    around = ((nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU()) for _ in range(2))
    parts = zip(around, names[::2], names[1::2], strict=True)
    blocks = (
        nn.Sequential(linear, post(posts, one), norm, post(posts, other), gelu)
        for (linear, norm, gelu), one, other in parts
    )
    shared = Shared(nn.Sequential(*blocks), training=training)
    places = list(itertools.product(names, (False, True)))
    for one, other in itertools.product(places, places):
        with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
            first.enter_context(posts.standing(shared.train, one))
            second.enter_context(posts.standing(shared.train, other))
            assert run_all(shared.train, shared.train) == []
            first.close()  # the second still stands where it does
    shared.check()


def slow(barrier: threading.Barrier) -> nn.Module:
    """Is in its replays as long as those of other threads are."""

    def meets(own: Told, x: Tensor) -> Any:
        x = own.norm(x).sin()
        if is_recomputing():
            barrier.wait(PATIENCE_SECONDS)
        return x.sin()

    return Told(meets, norm=nn.BatchNorm1d(WIDTH))


def test_threads_that_run_backward_at_once_leave_the_models_own_buffers() -> None:
    """In training: every forward has run, and only replays meet."""
    torch.manual_seed(0)
    plain, model = (
        nn.Sequential(nn.Linear(WIDTH, WIDTH), slow(threading.Barrier(4)), nn.Linear(WIDTH, WIDTH)) for _ in range(2)
    )
    model.load_state_dict(plain.state_dict())
    planned(model)
    own = dict(model.named_buffers())
    for _ in range(3):
        losses = [summed(model) for _ in range(4)]
        assert run_all(*(loss.backward for loss in losses)) == []
        for _ in range(4):
            summed(plain)
    for name, buffer in model.named_buffers():
        assert buffer is own[name] and torch.equal(buffer, plain.get_buffer(name)), name


def ramp() -> Tensor:
    return torch.linspace(-1, 1, WIDTH).expand(4, WIDTH).clone().requires_grad_()


def gradient_of(x: Tensor, out: Tensor) -> Tensor:
    return torch.autograd.grad(out.sum(), [x])[0]


def whole(model: nn.Module) -> nn.Module:
    """The model inside another, whose plan recomputes it."""
    outer = nn.Sequential(model)
    install(outer, Plan.of(["0"]))
    return outer


class Stand:
    """A place inside a replay, at which it stands until it may go on."""

    def __init__(self) -> None:
        self.reached, self.on = threading.Event(), threading.Event()

    def __deepcopy__(self, _: object) -> Stand:
        return self

    def passed(self) -> None:
        if is_recomputing():
            self.reached.set()
            assert self.on.wait(PATIENCE_SECONDS)


def standing(stand: Stand, *, draws: bool) -> nn.Module:
    """Passes a place between two operators, or two draws from the host's generator."""

    def passes(own: Told, x: Tensor) -> Any:
        x = (x * torch.rand(WIDTH) if draws else x).sin()
        stand.passed()
        return (x * torch.rand(WIDTH) if draws else x).sin()

    return Told(passes)


@pytest.mark.parametrize("other_draws", [False, True])
def test_replays_of_other_threads_leave_the_hosts_generator_to_the_one_that_draws(other_draws: bool) -> None:
    """One of two replays that overlapped drew from what the other had set, and left the generator as it was amid one.

    A replay stands between its draws while another begins, and ends while that one stands. One that draws as well waits
    for its turn, which no event tells: a wrong replay would not take so long.
    """
    stands = [Stand(), Stand()]
    plain = [standing(stands[0], draws=True), standing(stands[1], draws=other_draws)]
    torch.manual_seed(1)
    expected = [gradient_of(x, model(x)) for model in plain for x in [ramp()]]
    state = torch.get_rng_state()
    torch.manual_seed(1)
    given = [ramp(), ramp()]
    losses = [whole(model)(x).sum() for model, x in zip(plain, given, strict=True)]
    threads = [threading.Thread(target=loss.backward, daemon=True) for loss in losses]
    for thread, stand, seconds in zip(threads, stands, (PATIENCE_SECONDS, 0.3), strict=True):
        thread.start()
        stand.reached.wait(seconds if other_draws else PATIENCE_SECONDS)
    for thread, stand in zip(threads, stands, strict=True):
        stand.on.set()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    for one, x in zip(expected, given, strict=True):
        assert x.grad is not None and torch.equal(one, x.grad)
    assert torch.equal(torch.get_rng_state(), state)


def differentiates(own: Told, x: Tensor) -> Any:
    """Differentiates a graph from outside in its replay, which replays the frames of that graph."""
    out = own.inner(x)
    if is_recomputing() and own.graph:
        torch.autograd.grad(own.graph.pop(), list(own.inner.parameters()))
    return out.sin()


def test_a_replay_inside_a_replay_of_the_same_module_does_not_wait_for_itself() -> None:
    differentiating = Told(differentiates, inner=normalised(1), graph=[])
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), differentiating, nn.Linear(WIDTH, 1))
    model: Any = copy.deepcopy(plain)
    install(model, Plan.of(["1"]))

    def train() -> None:
        model[1].graph.append(summed(model))
        summed(model).backward()

    with counting_replays() as replays:
        assert run_all(train) == []
    assert len(replays) == 2 and not model[1].graph
    summed(plain)
    summed(plain).backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)
    assert all(map(torch.equal, plain.buffers(), model.buffers()))


def test_replays_of_two_models_do_not_wait_for_each_other() -> None:
    """Ranks that are threads meet in the midst of a forward."""
    barrier = threading.Barrier(2)
    models = [planned(nn.Sequential(nn.Linear(WIDTH, WIDTH), slow(barrier))) for _ in range(2)]
    losses = [summed(model) for model in models]
    assert run_all(*(loss.backward for loss in losses)) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_replay_that_fails_lets_the_others_go_on(error: type[BaseException]) -> None:
    def fails_in_replays(own: Told, x: Tensor) -> Any:
        x = own.norm(x).sin()
        if is_recomputing() and own.fails:
            raise error
        return x.sin()

    failing = Told(fails_in_replays, norm=nn.BatchNorm1d(WIDTH), fails=[True])
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), failing)
    planned(model)
    losses = [summed(model), summed(model)]
    own = dict(model.named_buffers())
    with pytest.raises(error):
        losses[0].backward()
    failing.fails.clear()
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


def restless(own: Told, x: Tensor) -> Any:
    """Adds buffers in its forward, takes others out, and moves one behind the others."""
    own.calls += 1
    a = own.a
    del own.a
    if not is_recomputing():
        own.register_buffer("a", a)
    own.register_buffer(f"new{own.calls}", a + 1)
    if own.calls > 1:
        own._buffers.pop(f"new{own.calls - 1}", None)
    return (own.linear(x) * a).sin().cos()


@pytest.mark.parametrize("n_steps", [1, 3])
def test_entries_that_a_forward_adds_or_takes_out_are_those_of_the_plain_step(n_steps: int) -> None:
    buffers = {name: torch.full((WIDTH,), 1.0 + number) for number, name in enumerate("abcd")}
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), with_linear(restless, calls=0, **buffers))
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


def reads_entries(own: Told, x: Tensor) -> Any:
    """Notes in its replay what another thread finds in it."""
    if is_recomputing():
        assert run_all(lambda: own.found.append(list(own.state_dict()))) == []
    return own.norm(x).sin().cos()


def test_dicts_exchanged_between_forward_and_backward_have_all_entries_in_the_replay_and_after_it() -> None:
    found: list[list[str]] = []
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), Told(reads_entries, norm=nn.BatchNorm1d(WIDTH), found=found))
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
