"""What goes wrong says so, and leaves the model as it was."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autockpt import Plan, ReplayError, apply, is_recomputing
from tests.doors import install
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, Tower, batch, cnn, images, summed
from tests.toys.chains import InTurn
from tests.toys.told import Told, with_linear
from tests.twin import counting_replays


def acting(act: Callable[[Tensor], Tensor]) -> nn.Module:
    """Runs `act` on its input."""
    return Told(lambda own, x: act(x))


def with_act(act: Callable[[Tensor], Tensor]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), acting(act), nn.Linear(WIDTH, 1))


def forgetful(then: Callable[[Tensor], Tensor], now: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that does something else in a replay."""
    return lambda x: now(x) if is_recomputing() else then(x)


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        (lambda x: x.exp().sin(), lambda x: x.exp(), "fewer tensors"),
        (lambda x: x.exp(), lambda x: x.exp().sin().exp(), None),
        (lambda x: x.sin().exp(), lambda x: x.exp().sin(), "a result of .* instead of|fewer|more"),
        (lambda x: x.exp(), lambda x: x.tanh(), "a result of TanhBackward0 instead of ExpBackward0"),
        (lambda x: x.exp(), lambda x: x[:2].exp(), r"a tensor of shape \(2, 8\) instead of \(4, 8\)"),
        (lambda x: x.exp(), lambda x: x.t().exp().t(), "a tensor of shape"),
        (lambda x: x.exp(), lambda x: x.t().contiguous().t().exp(), "a tensor of strides"),
        (lambda x: x.exp(), lambda x: x.double().exp(), r"a tensor of torch\.float64 instead of torch\.float32"),
    ],
    ids=["fewer", "after the last", "order", "another function", "shape", "transposed", "strides", "dtype"],
)
def test_a_replay_that_does_something_else(then: Any, now: Any, message: str | None) -> None:
    model = with_act(forgetful(then, now))
    install(model, Plan.of([["1", "2"]]))
    loss = model(batch(4, WIDTH)).sum()
    if message is None:  # the replay ends before it shows
        loss.backward()
        return
    with pytest.raises(ReplayError, match=rf"the replay of 2#0 saved {message}"):
        loss.backward()


def test_two_indices_that_a_replay_makes_otherwise_are_a_difference() -> None:
    """So few whole numbers of a device may be a generator's state that no kernel wrote; on the CPU they never are."""

    def turned(own: Told, x: Tensor) -> Tensor:
        return x[:, torch.tensor([1, 0] if own.late and is_recomputing() else [0, 1])]

    turning = Told(turned, late=False)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), turning, nn.Linear(2, 1))
    apply(model, plan=Plan.of(["1"]), check="always")
    for _ in range(2):
        model(batch(4, WIDTH)).sum().backward()
    object.__setattr__(turning, "late", True)
    loss = model(batch(4, WIDTH)).sum()
    with pytest.raises(ReplayError, match="1#0 saved other values in its replay"):
        loss.backward()


def test_more_tensors_in_a_call_than_before() -> None:
    model = with_act(lambda x: x.exp())
    model[1] = acting(forgetful(lambda x: x.sin(), lambda x: x.sin().sin()))
    install(model, Plan.of([["1", "2"]]))
    with pytest.raises(ReplayError, match="the replay of 1#0 saved more tensors"):
        model(batch(4, WIDTH)).sum().backward()


def test_a_divergence_is_not_swallowed_by_the_module() -> None:
    def swallowing(x: Tensor) -> Tensor:
        try:
            y = x.double().exp() if is_recomputing() else x.exp()
        except Exception:
            y = x.exp()
        return y.float().sin()

    model = with_act(swallowing)
    install(model, Plan.of(["2"]))
    with pytest.raises(ReplayError, match="float64"):
        model(batch(4, WIDTH)).sum().backward()


def catching(x: Tensor) -> Tensor:
    """Would catch a stop signal that derives from Exception, and then do something else."""
    try:
        return x.exp().sin()
    except Exception:
        return x


def catching_everything(x: Tensor) -> Tensor:
    try:
        return x.exp().sin()
    except BaseException:
        return x.exp().sin() + x.cos()
    finally:
        x.exp()


@pytest.mark.parametrize("act", [catching, catching_everything])
def test_the_early_stop_passes_through_handlers(act: Any) -> None:
    assert_same(with_act(act), [["1", "2"]], summed)


def test_an_error_in_the_replay_leaves_the_model_as_it_was() -> None:
    def failing(x: Tensor) -> Tensor:
        if is_recomputing():
            raise MemoryError
        return x.exp()

    model = cnn()
    model.insert(2, acting(failing))
    install(model, Plan.of([["0", "1", "2"]]))
    loss = images(model)
    before = [(id(buffer), buffer.clone()) for buffer in model.buffers()]
    model.eval()
    with pytest.raises(MemoryError) as caught:
        loss.backward()
    assert sys.version_info < (3, 11) or "in the replay of 2#0" in caught.value.__notes__[0]
    assert not any(module.training for module in model.modules())
    assert not is_recomputing()
    for (identity, value), buffer in zip(before, model.buffers(), strict=True):
        assert identity == id(buffer) and torch.equal(value, buffer)


def test_an_error_between_members_leaves_nothing_behind() -> None:
    plain = Tower()
    model = copy.deepcopy(plain)
    install(model, Plan.of([["blocks.0", "blocks.1", "blocks.2", "blocks.3"]]))
    for kind in (RuntimeError, KeyboardInterrupt):

        def fail(*_: Any, kind: Any = kind) -> None:
            raise kind

        for where in ("blocks.2", "blocks.2.first"):
            handle = model.get_submodule(where).register_forward_pre_hook(fail)
            with pytest.raises(kind):
                summed(model)
            handle.remove()
    with counting_replays() as replays:
        assert steps(plain, summed).differences(steps(model, summed)) == []
    assert len(replays) == 2


def test_an_error_that_the_parent_catches() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError

    def falls_back(number: int, stage: nn.Module, x: Tensor) -> Any:
        """Does something else when a member fails, and goes on with the members after it."""
        try:
            return stage(x)
        except ValueError:
            return x.exp()

    torch.manual_seed(0)
    layers = [[nn.Linear(WIDTH, WIDTH), nn.Tanh()] for _ in range(4)]
    layers[1].append(acting(fail))
    assert_same(
        InTurn((nn.Sequential(*some) for some in layers), falls_back), [[f"blocks.{i}" for i in range(4)]], summed
    )


def test_a_boundary_changed_in_place_raises() -> None:
    def changing(own: Told, x: Tensor) -> Any:
        hidden = own.linear(x)
        out = own.second(hidden)
        hidden.add_(1)
        return out

    model = with_linear(changing, second=nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, 1)))
    install(model, Plan.of(["second"]))
    with pytest.raises(RuntimeError, match=r"second#0: .* by an inplace operation: .* shape \(4, 8\), is at version 1"):
        summed(model).backward()


@pytest.mark.parametrize("new_dict", [False, True])
def test_a_step_runs_the_modules_of_its_forward_where_they_were_exchanged(new_dict: bool) -> None:
    """It was refused."""

    def run(model: nn.Module) -> Tensor:
        loss, block = summed(model), model.get_submodule("blocks.0")
        if new_dict:
            block._modules = {**block._modules, "first": nn.Linear(WIDTH, 2 * WIDTH)}
        else:
            block.first = nn.Linear(WIDTH, 2 * WIDTH)
        return loss

    plain, model = Tower(), Tower()
    install(model, Plan.of([["blocks.0", "blocks.1"]]))
    before = list(plain.parameters()), list(model.parameters())
    for each in (plain, model):
        torch.manual_seed(3)
        run(each).backward()
    for one, other in zip(*before, strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_an_inplace_layer_first_raises_and_inside_a_run_does_not() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.Sigmoid())
    assert_same(model, [["0", "1", "2", "3"]], summed)
    assert_same(model, [["0", "1"], ["2", "3"]], summed)
    install(model, Plan.of([["1", "2"]]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        summed(model).backward()


def test_a_member_that_changes_a_result_of_an_earlier_one_without_returning_it() -> None:
    def doubling(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.exp()

    def act(own: Told, x: Tensor) -> Any:
        hidden = own.first(x)
        other = own.twice(hidden)
        return own.last(hidden) * other

    torch.manual_seed(0)
    parts = {"first": nn.Linear(WIDTH, WIDTH), "twice": acting(doubling), "last": nn.Linear(WIDTH, WIDTH)}
    assert_same(Told(act, **parts), [["first", "twice", "last"]], summed)


@pytest.mark.parametrize("kind", ["_parameters", "_buffers"])
def test_a_step_uses_the_tensors_of_its_forward_where_their_dict_was_replaced(kind: str) -> None:
    """The replay read the new ones, and counted a batch twice."""

    def run(model: nn.Module) -> Tensor:
        loss = summed(model)
        norm = model.get_submodule("1.1")
        setattr(norm, kind, {name: copy.deepcopy(tensor) for name, tensor in getattr(norm, kind).items()})
        loss.backward()
        return loss

    def outcome(*segments: str) -> list[Tensor | None]:
        torch.manual_seed(0)
        part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), part, nn.Linear(WIDTH, WIDTH))
        first = list(model.parameters())
        install(model, Plan.of(list(segments)))
        with counting_replays() as replays:
            run(model)
        assert len(replays) == len(segments)
        return [*(parameter.grad for parameter in first), *model.buffers()]

    for one, other in zip(outcome(), outcome("1"), strict=True):
        assert one is not None and other is not None and torch.equal(one, other)


class Raises(TorchFunctionMode):
    """Raises at the function that is called when `calls` others have been."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.calls:
            raise ZeroDivisionError(str(function))
        self.calls -= 1
        return function(*args, **(kwargs or {}))


def test_a_function_mode_that_raises_anywhere_in_a_replay_leaves_all_as_it_was() -> None:
    """It sees what a replay calls, what switches gradients on too. What the engine runs no mode sees."""

    def settings() -> list[Any]:
        return [torch.is_autocast_cache_enabled(), is_recomputing(), torch.get_rng_state().tolist()]

    seen: list[str] = []
    for calls in range(100):
        model = with_act(lambda x: nn.functional.dropout(x, 0.5).sin())
        install(model, Plan.of([["1", "2"]]))
        node: Any = summed(model).grad_fn
        while node.name() != "SinBackward0":
            node = node.next_functions[1 if node.name() == "AddmmBackward0" else 0][0]
        before = settings()
        with torch.no_grad():
            try:
                with Raises(calls):
                    assert torch.is_tensor(node._saved_self)
            except ZeroDivisionError as error:
                seen.append(str(error))
            else:
                break
            assert settings() == before
            # What switches them off again may raise too, and is the last to do so.
            assert not torch.is_grad_enabled() or "set_grad_enabled" in seen[-1]
    assert sum("set_grad_enabled" in function for function in seen) >= 2
