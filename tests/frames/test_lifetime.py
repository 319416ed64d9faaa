"""What a frame holds dies when it should: by reference count, one by one, to the byte."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autockpt import Plan, Segment, is_recomputing
from tests.doors import Detached, Frame, Slot, install, torch_private, uninstall
from tests.frames.models import WIDTH, Tower, batch, summed
from tests.toys.chains import InTurn, Residual
from tests.toys.told import Told, with_linear

ROWS = 64


def chain(length: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(Residual(64, 2) for _ in range(length)), nn.Linear(64, 1))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def events(step: Callable[[], Any]) -> list[int]:
    """Return the level of the CPU allocator after each of its events, relative to the beginning."""
    profiler = torch_private.start_memory_profiler()
    step()
    level, levels = 0, [0]
    for _, change, _, _ in torch_private.stop_memory_profiler(profiler, "cpu"):
        level += change
        levels.append(level)
    return levels


def peak(model: nn.Module) -> int:
    x = torch.ones(ROWS, 64)

    def step() -> None:
        model(x).sum().backward()

    step()
    return max(events(step))


def checkpointed(model: nn.Sequential, run: int) -> nn.Module:
    """The same blocks under torch's own checkpoint."""
    parts = (model[i : i + run] for i in range(0, len(model) - 1, run))
    return InTurn(
        parts, lambda _, part, x: checkpoint(part, x, use_reentrant=False, preserve_rng_state=False), model[-1]
    )


@pytest.mark.parametrize("run", [1, 2, 3, 6])
def test_the_peak_is_that_of_torch_checkpoint_or_less(run: int) -> None:
    plain, planned = chain(), chain()
    names = [str(i) for i in range(6)]
    install(planned, Plan.of([names[i : i + run] for i in range(0, 6, run)]))
    # A plain step and a frame release a saved tensor when its node is done; checkpoint when it is unpacked, which is
    # before the node's bias gradient is summed.
    bias = 64 * 4
    assert peak(planned) <= peak(checkpointed(chain(), run)) + bias
    assert run == 6 or peak(planned) < peak(plain)


def test_the_levels_after_forward_are_the_boundary() -> None:
    x = torch.ones(ROWS, 64)
    found = {}
    for run in (1, 2, 3, 6):
        model = chain()
        names = [str(i) for i in range(6)]
        install(model, Plan.of([names[i : i + run] for i in range(0, 6, run)]))
        kept: list[Tensor] = []
        found[run] = events(lambda model=model, kept=kept: kept.append(model(x)))[-1]  # type: ignore[misc]
    unit = ROWS * 64 * 4
    output = ROWS * 4
    # x itself is the caller's; the last layer saves its input.
    assert found == {1: 6 * unit + output, 2: 3 * unit + output, 3: 2 * unit + output, 6: unit + output}


@pytest.mark.parametrize("run", [["first", "table", "last"], ["table", "last"]], ids=["midst", "beginning"])
def test_what_needs_no_gradient_in_a_run_is_not_held(run: list[str]) -> None:
    """As positions from a frozen table: budgets were exceeded by its result, which counted as made again."""

    model = Told(
        lambda own, x, places: own.last(own.first(x), own.table(places)),
        first=nn.Linear(64, 64),
        table=nn.Embedding(ROWS, 64).requires_grad_(False),
        last=with_linear(lambda own, x, places: own.linear((x + places).tanh()), 64),
    )
    batch = (torch.ones(ROWS, 64), torch.arange(ROWS))
    kept: list[Tensor] = []
    install(model, Plan.of([run]))
    hidden_bytes = 0 if "first" in run else 4 * 64 * ROWS
    assert events(lambda: kept.append(model(*batch).sum()))[-1] == 4 + hidden_bytes  # the loss, and the boundary
    kept.pop().backward()


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Any]:
    """Collect every frame that is made from now on."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    original = Frame.__init__

    def init(self: Frame, *given: Any) -> None:
        original(self, *given)
        alive.add(self)

    monkeypatch.setattr(Frame, "__init__", init)
    return alive


PLANS = [["blocks.0", "blocks.1"], ["blocks.2"], ["blocks.3.first", "blocks.3.dropout", "blocks.3.second"]]


@pytest.mark.parametrize("how", ["backward", "no backward", "retained", "create_graph", "error in forward"])
@pytest.mark.usefixtures("no_gc")
def test_no_frame_outlives_its_graph_without_the_collector(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = watched(monkeypatch)
    model = Tower()
    install(model, Plan.of(PLANS))
    for _ in range(3):
        if how == "error in forward":
            with pytest.raises(RuntimeError, match="normalized_shape"):
                model(torch.ones(4, WIDTH + 1))
            handle = model.blocks[3].register_forward_pre_hook(raising)
            with pytest.raises(KeyboardInterrupt):
                summed(model)
            handle.remove()
            continue
        loss = summed(model)
        assert len(alive) == 3
        if how == "backward":
            loss.backward()
            assert not alive  # though `loss` is still there
        elif how == "retained":
            loss.backward(retain_graph=True)
        elif how == "create_graph":
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            sum(gradient.sum() for gradient in gradients).backward()  # type: ignore[union-attr]
            del gradients
        del loss
    assert not alive


@pytest.mark.usefixtures("no_gc")
def test_what_was_taken_off_does_not_hold_the_model() -> None:
    model = Tower()
    install(model, Plan(segments=(Segment(calls=("blocks.1#0",), keep=("blocks.1.first#0",)),)))
    loss = summed(model)
    uninstall(model)
    loss.backward()
    parameter = weakref.ref(next(model.parameters()))
    del model, loss
    assert parameter() is None


def raising(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("no_gc")
def test_tensors_do_not_pile_up() -> None:
    model = Tower()
    install(model, Plan.of(PLANS))

    def level() -> int:
        def steps() -> None:
            for _ in range(3):
                summed(model).backward()
                model.zero_grad()
                summed(model)

        return events(steps)[-1]

    level()
    assert level() == 0


def test_a_boundary_goes_with_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that stands for a part of it keeps that part; slots go one by one after it."""
    order: list[str] = []
    monkeypatch.setattr(Slot, "__del__", lambda self: order.append("slot"), raising=False)
    monkeypatch.setattr(Detached, "__del__", lambda self: order.append("boundary"), raising=False)
    model = chain(2)
    install(model, Plan.of([["0", "1"]]))
    model(torch.ones(ROWS, 64)).sum().backward()
    assert order == ["boundary"] + ["slot"] * (len(order) - 1)
    assert len(order) > 10


def test_restored_tensors_die_one_by_one() -> None:
    """A run of six layers in one segment: backward's level falls layer by layer, as it does in a plain step."""
    model = chain()
    install(model, Plan.of([[str(i) for i in range(6)]]))
    levels: list[int] = []
    alive = {"bytes": 0}
    original = Slot.fill

    def fill(self: Slot, tensor: Tensor, value: Tensor) -> str | None:
        size = value.untyped_storage().nbytes()
        alive["bytes"] += size
        weakref.finalize(self, lambda: alive.__setitem__("bytes", alive["bytes"] - size))
        return original(self, tensor, value)

    for layer in list(model)[:-1]:
        layer.register_full_backward_hook(lambda *_: levels.append(alive["bytes"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slot, "fill", fill)
        model(torch.ones(ROWS, 64, requires_grad=True)).sum().backward()
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) == 6


def test_the_boundary_is_not_copied() -> None:
    model = chain(1)
    install(model, Plan.of(["0"]))
    x = batch(ROWS, 64)
    held: list[Tensor] = []
    original = Detached.leaf

    def leaf(self: Detached) -> Tensor:
        held.append(original(self))
        return held[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Detached, "leaf", leaf)
        model(x).sum().backward()
    assert [tensor.data_ptr() for tensor in held] == [x.data_ptr()]


def test_in_a_replay_a_result_goes_with_the_last_call_that_reads_it() -> None:
    read: list[weakref.ref[Tensor]] = []
    gone: list[bool] = []

    def reads(own: Told, x: Tensor) -> Tensor:
        if is_recomputing():
            read.append(weakref.ref(x))
        return x + 1

    def looks(own: Told, x: Tensor) -> Any:
        if is_recomputing():
            gone.append(read[-1]() is None)
        return own.linear(x)

    doubled = Told(lambda own, x: 2 * x)  # saves nothing, so nothing else holds what it returns
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), doubled, Told(reads), with_linear(looks, WIDTH), nn.Linear(WIDTH, 1))
    install(model, Plan.of([["1", "2", "3"]]))
    model(batch(ROWS, WIDTH)).sum().backward()
    assert gone == [True]


def test_a_backward_that_keeps_its_graph_leaves_nothing_that_was_replayed() -> None:
    model = chain()
    install(model, Plan.of([str(i) for i in range(6)]))
    loss = model(torch.ones(ROWS, 64)).sum()
    loss.backward(retain_graph=True)
    slots = [each for each in gc.get_objects() if isinstance(each, Slot)]
    assert slots and [each for each in slots if each.value is not None] == []
    loss.backward()
