"""What a recording of a step of our own leaves behind: nothing, in whatever Python object it was."""

from __future__ import annotations

import collections
import functools
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import autockpt
from tests.toys.told import Told

BATCH = torch.randn(64, 16)
GENERATOR = torch.Generator()
FEATURES: list[Tensor] = []
STEPS = 0

Change = Callable[[Any], object]


class Block(nn.Module):
    """A block that does something beside its work."""

    def __init__(self, aside: Callable[[Block], float | Tensor] | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
        self.aside: Callable[[Block], float | Tensor] | None = aside

    def forward(self, hidden: Tensor) -> Tensor:
        scale: float | Tensor = 1.0 if self.aside is None else self.aside(self)
        out: Tensor = hidden + self.down(nn.functional.gelu(self.up(hidden) * scale))
        return out


def mean_loss() -> nn.Module:
    """A loss with a buffer."""

    def act(own: Told, out: Tensor) -> Any:
        own.mean.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)
        return (out - own.mean).square().mean()

    return Told(act, mean=torch.zeros(16))


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


def trained(
    make: Callable[[], nn.Module],
    step: Callable[[nn.Module], Tensor],
    apply: Callable[[nn.Module], object] | None = None,
) -> list[Tensor]:
    """Losses and gradients of three steps, without a plan or with one."""
    torch.manual_seed(0)
    model = make()
    if apply is not None:
        apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in range(3):
        loss = step(model)
        loss.backward()
        found += [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
    return found


def plain_step(model: nn.Module) -> Tensor:
    loss: Tensor = model(BATCH).square().mean()
    return loss


def check(
    make: Callable[[], nn.Module],
    step: Callable[[nn.Module], Tensor] = plain_step,
    loss: Callable[[nn.Module], Callable[[Any], Tensor]] | None = None,
) -> None:
    """Hold training under a plan, made in the first forward and before it, against plain training."""
    expected = trained(make, step)
    for inputs in (None, BATCH):
        told = (lambda model: None) if loss is None else loss

        def apply(model: nn.Module, inputs: Tensor | None = inputs, told: Any = told) -> None:
            autockpt.apply(model, budget="lowest", inputs=inputs, loss=told(model))

        found = trained(make, step, apply)
        assert all(map(torch.equal, found, expected))


def blocks(aside: Callable[[Block], float | Tensor] | None) -> nn.Module:
    return nn.Sequential(*(Block(aside) for _ in range(4)))


def test_a_counter_in_an_object_is_put_back() -> None:
    def counted(block: Block) -> float:
        state: Any = block.state
        state.n += 1
        return 1 + 0.1 * float(state.n)

    def make() -> nn.Module:
        model = blocks(counted)
        for block in model.children():
            block.__dict__["state"] = types.SimpleNamespace(n=0)
        return model

    check(make)


@pytest.mark.parametrize("uses", [lambda features: sum(each.square().mean() for each in features), len])
def test_lists_that_hooks_fill_are_put_back(uses: Callable[[list[Tensor]], Any]) -> None:
    def make() -> nn.Module:
        FEATURES.clear()
        model = blocks(None)
        for block in model.children():
            block.register_forward_hook(lambda module, given, out: FEATURES.append(out))
        return model

    def step(model: nn.Module) -> Tensor:
        FEATURES.clear()
        loss: Tensor = model(BATCH).square().mean() * uses(FEATURES)
        return loss

    check(make, step)
    FEATURES.clear()


@pytest.mark.parametrize("wrap", [lambda mean: mean, lambda mean: lambda out: mean(out), lambda mean: mean.forward])
def test_a_buffer_of_the_loss_is_put_back(wrap: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> None:
    def make() -> nn.Module:
        model = blocks(None)
        model.__dict__["criterion"] = mean_loss()
        return model

    def step(model: nn.Module) -> Tensor:
        return wrap(model.__dict__["criterion"])(model(BATCH))

    check(make, step, lambda model: wrap(model.__dict__["criterion"]))


def test_a_generator_that_is_global_is_put_back() -> None:
    def make() -> nn.Module:
        GENERATOR.manual_seed(0)
        return blocks(lambda block: torch.rand(64, generator=GENERATOR))

    check(make)


def test_a_generator_inside_an_attribute_is_put_back() -> None:
    def drawn(block: Block) -> Tensor:
        return torch.rand(64, generator=block.__dict__["config"].generator)

    def make() -> nn.Module:
        model = blocks(drawn)
        for block in model.children():
            block.__dict__["config"] = types.SimpleNamespace(generator=torch.Generator().manual_seed(0))
        return model

    check(make)


def test_weights_that_torch_caches_are_not_those_of_the_recording() -> None:
    def make() -> nn.Module:
        model = blocks(None)
        for block in model.children():
            parametrizations.weight_norm(block.get_submodule("up"))
        return model

    def step(model: nn.Module) -> Tensor:
        with parametrize.cached():
            loss: Tensor = model(BATCH).square().mean()
        return loss

    check(make, step)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_a_model_with_a_traced_part_is_planned() -> None:
    def make() -> nn.Module:
        model = blocks(None)
        traced: Any = torch.jit.trace(nn.Sequential(nn.Linear(16, 16), nn.GELU()), torch.randn(2, 16))
        return nn.Sequential(model, traced)

    check(make)


@pytest.mark.parametrize("goal", [{"budget": "1GB"}, {"plan": autockpt.Plan.of(["0"])}])
def test_lazy_modules_are_refused_until_they_have_run(goal: dict[str, Any]) -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.GELU(), nn.Linear(8, 8))
    with pytest.raises(autockpt.NotApplicable, match=r"0\.weight has no shape yet.*Run one forward"):
        autockpt.apply(model, **goal)
    with pytest.raises(autockpt.NotApplicable, match="has no shape yet"):
        autockpt.profile(model, BATCH)
    model(BATCH)
    autockpt.apply(model, **goal)
    model(BATCH).sum().backward()


STATES: dict[str, tuple[Callable[[], Any], Change, Callable[[Any], Any]]] = {
    "list": (lambda: [1], lambda state: state.append(2), list),
    "list in a dictionary": (lambda: {"a": [1]}, lambda state: state["a"].append(2), lambda state: list(state["a"])),
    "order of a dictionary": (lambda: {1: 2, 3: 4}, lambda state: state.update({1: state.pop(1)}), list),
    "ordered dictionary": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda state: state.move_to_end("a"),
        lambda state: list(state.items()),
    ),
    "set": (lambda: {1}, lambda state: state.add(2), set),
    "deque": (lambda: collections.deque([1, 2], 2), lambda state: state.append(3), list),
    "counter": (collections.Counter, lambda state: state.update("a"), dict),
    "array": (lambda: numpy.zeros(3), lambda state: state.__iadd__(1), lambda state: state.tolist()),
    "slots": (Slotted, lambda state: state.add(), lambda state: state.count),
    "tensor": (lambda: torch.zeros(3), lambda state: state.add_(1), lambda state: state.tolist()),
    "tensor in a list": (lambda: [torch.zeros(3)], lambda state: state[0].add_(1), lambda state: state[0].tolist()),
    "Python's generator": (lambda: random.Random(0), lambda state: state.random(), lambda state: state.getstate()),
    "numpy's generator": (
        lambda: numpy.random.default_rng(0),
        lambda state: state.random(),
        lambda state: state.bit_generator.state,
    ),
    "numpy's older generator": (
        lambda: numpy.random.RandomState(0),
        lambda state: state.rand(),
        lambda state: repr(state.get_state()),
    ),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("where", ["attribute", "closure", "partial", "loss"])
def test_the_same_object_holds_again_what_it_held(name: str, where: str, caplog: pytest.LogCaptureFixture) -> None:
    make, change, value = STATES[name]
    state = make()
    alias = {"attribute": "state"}

    def aside(block: Block) -> float:
        change(block.__dict__["state"] if where == "attribute" else state)
        return 1.0

    def loss(out: Tensor) -> Tensor:
        change(state)
        return out.sum()

    model = Block({"attribute": lambda block: aside(block), "closure": aside}.get(where))
    if where == "partial":
        model.aside = functools.partial(lambda held, block: (change(held), 1.0)[1], state)
    model.__dict__[alias.get(where, "other")] = state
    before = value(state)
    autockpt.profile(model, BATCH, loss=loss if where == "loss" else None)
    assert value(state) == before
    assert not caplog.records


def test_a_counter_that_is_global_or_of_the_class_is_put_back() -> None:
    class Counting(Block):
        count = 0

        def forward(self, hidden: Tensor) -> Tensor:
            global STEPS
            STEPS += 1
            Counting.count += 1
            return super().forward(hidden)

    autockpt.profile(Counting(), BATCH)
    assert (STEPS, Counting.count) == (0, 0)


def test_a_history_that_a_kernel_moves_through_a_pointer_is_put_back() -> None:
    def move(block: Block) -> float:
        histories[block.up].numpy()[0] += 1
        return 1.0

    model = nn.Sequential(*(Block(move) for _ in range(2)))
    histories = {block.up: torch.zeros(4) for block in model if isinstance(block, Block)}
    autockpt.profile(model, BATCH)
    assert [each.tolist() for each in histories.values()] == [[0.0] * 4] * 2


def test_a_variable_that_a_hook_closes_over_is_put_back() -> None:
    count = 0

    def hook(*_: object) -> None:
        nonlocal count
        count += 1

    model = Block()
    model.register_forward_hook(hook)
    autockpt.profile(model, BATCH)
    assert count == 0


def test_what_cannot_be_put_back_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = Block(lambda block: float(next(block.__dict__["numbers"]) >= 0))
    model.__dict__["numbers"] = itertools.count()
    profile = autockpt.profile(nn.Sequential(model), BATCH)
    assert "forward changed the iterator 0.numbers, which could not be put back" in profile.notes
    assert "the iterator 0.numbers, which could not be put back" in caplog.text
