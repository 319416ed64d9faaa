"""Generator states: as few as can be, and none too few."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan, Segment
from tests.doors import (
    NUMPY,
    PYTHON,
    Frame,
    Generator,
    States,
    frames_recording,
    install,
    needed,
    set_states,
    states_of,
)
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, WithLinear, batch, summed


class Chain(nn.Module):
    """Members 0 to 3, some of which draw; `glue` says after which of them the parent draws."""

    def __init__(self, drawing: set[int], glue: set[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3) if i in drawing else nn.Tanh()) for i in range(4)
        )
        self.glue = glue

    def forward(self, x: Tensor) -> Tensor:
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i in self.glue:
                x = x * torch.rand(1)
        return x


@pytest.mark.parametrize(
    ("drawing", "glue", "kept"),
    [
        (set(), set(), 0),
        (set(), {0, 1, 2}, 0),
        ({0, 1, 2, 3}, set(), 1),
        ({2}, set(), 1),
        ({2}, {0}, 1),
        ({0, 2}, {0}, 2),
        ({0, 2}, {2}, 1),
        ({0, 1, 2, 3}, {1}, 2),
        ({0, 3}, {0, 1, 2}, 2),
    ],
    ids=str,
)
def test_states_are_kept_where_nothing_leads_to_them(
    drawing: set[int], glue: set[int], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[Frame] = []

    def made(*given: object) -> Frame:
        frames.append(Frame(*given))  # type: ignore[arg-type]
        return frames[-1]

    monkeypatch.setattr(frames_recording, "Frame", made)
    plan = [[f"stages.{i}" for i in range(4)]]
    model = Chain(drawing, glue)
    install(model, Plan.of(plan))
    loss = model(batch(4, WIDTH)).sum()
    (frame,) = frames
    assert sum(len(call.random) for call in frame.calls) == kept
    del loss
    assert_same(Chain(drawing, glue), plan, summed)


def test_backward_leaves_the_generator_where_it_was() -> None:
    model = Chain({0, 1}, set())
    install(model, Plan.of([["stages.0", "stages.1"]]))
    loss = summed(model)
    torch.manual_seed(99)
    expected = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_state_survives_the_trip() -> None:
    generator = torch.Generator().manual_seed(5)
    before = states_of([generator])
    drawn = torch.rand(700, generator=generator)
    set_states(before)
    assert torch.equal(torch.rand(700, generator=generator), drawn)


def test_two_generators_are_tracked_apart() -> None:
    one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    reached: dict[Generator, Any] = {}

    def call(*draws: torch.Generator) -> States:
        before = states_of([one, two])
        for generator in draws:
            torch.rand(1, generator=generator)
        return needed(before, reached)

    assert [generator for generator, _ in call(one)] == [one]
    assert [generator for generator, _ in call(one, two)] == [two]
    assert call() == []
    assert call(two, one) == []
    torch.rand(1, generator=two)
    assert [generator for generator, _ in call(two, one)] == [two]


class Reseeds(WithLinear):
    """A unit that sets the generator, wherever it was."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        out: Tensor = self.linear(x)
        return out


class Reseeding(nn.Module):
    """Draws after each of two units that seed alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Reseeds(), Reseeds()

    def forward(self, x: Tensor) -> Tensor:
        for unit in (self.first, self.second):
            x = nn.functional.dropout(unit(x).tanh(), 0.3).sin()
        return x


class Forking(nn.Module):
    """Draws in a fork, with a unit inside it and one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            x = self.first(x * torch.rand_like(x)).tanh()
        return torch.sin(self.second(x).tanh())


class ForkingOn(nn.Module):
    """Draws in a fork that goes on from where a unit stopped, as the next unit does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.linear(x)).tanh()
        with torch.random.fork_rng(devices=[]):
            x = torch.sin(x * torch.rand_like(x))
        return torch.sin(self.second(x).tanh())


@pytest.mark.parametrize("member", [Reseeding, Forking, ForkingOn])
def test_units_between_which_the_generator_comes_back_to_a_state(member: type[nn.Module]) -> None:
    """Both ends of a unit count: a look at its end alone makes the first two of these inexact.

    So does the third what leaves out where a unit stopped, because the next begins there.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(member(), nn.Dropout(0.2)) for _ in range(3)))
    segment = Segment(calls=("1.0#0",), keep=("1.0.first#0", "1.0.second#0"))
    assert_same(model, Plan(segments=(segment,)), summed)


class DrawsFromGiven(nn.Module):
    """A unit that draws from the generator that it is given."""

    def forward(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return torch.tanh(x) * torch.rand(x.shape, generator=generator)


class GivesOn(nn.Module):
    """Gives its generator to a unit, and then draws from it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unit = nn.Linear(WIDTH, WIDTH), DrawsFromGiven()

    def forward(self, x: Tensor, generator: torch.Generator) -> Tensor:
        x = self.unit(self.linear(x).sin(), generator=generator)
        return torch.sin(x * torch.rand(x.shape, generator=generator)).square()


class Makes(nn.Module):
    """Makes a generator in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.block = GivesOn()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x, torch.Generator().manual_seed(5))
        return out


def test_a_kept_unit_may_draw_from_a_generator_that_it_is_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Makes() for _ in range(3)))
    assert_same(model, Plan(segments=(Segment(calls=("1.block#0",), keep=("1.block.unit#0",)),)), summed)


OF_NUMPY: Any = numpy.random  # whose types leave out some of what it has


@pytest.fixture
def host_generators() -> Iterator[None]:
    """Leave Python's generator and numpy's as they were."""
    python, bits, state = random.getstate(), OF_NUMPY.get_bit_generator(), numpy.random.get_state()
    yield
    random.setstate(python)
    OF_NUMPY.set_bit_generator(bits)
    numpy.random.set_state(state)


@pytest.mark.usefixtures("host_generators")
@pytest.mark.parametrize("draw", [numpy.random.random, numpy.random.normal, lambda: numpy.random.bytes(1)])
@pytest.mark.parametrize("bits", [numpy.random.MT19937, numpy.random.PCG64, numpy.random.Philox])
def test_the_state_of_numpys_generator_is_all_of_it(bits: Callable[[int], Any], draw: Callable[[], object]) -> None:
    """A second normal number waits from the first on, and is drawn without a new word."""
    OF_NUMPY.set_bit_generator(bits(0))
    states: list[Any] = []
    drawn: list[object] = []
    for _ in range(4):
        states.append(NUMPY.read())
        drawn.append(draw())
    assert all(one != other for one, other in pairwise(states))
    for state, number in [*zip(states, drawn, strict=True)][::-1]:
        NUMPY.write(state)
        NUMPY.write(state)
        assert NUMPY.read() == state
        assert draw() == number


@pytest.mark.usefixtures("host_generators")
def test_the_state_of_pythons_generator_is_all_of_it() -> None:
    state, drawn = PYTHON.read(), random.gauss(0.0, 1.0)
    assert PYTHON.read() != state
    PYTHON.write(state)
    assert PYTHON.read() == state and random.gauss(0.0, 1.0) == drawn
