"""Generator states: as few as can be, and none too few."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autockpt import Plan, Segment
from tests.doors import (
    NUMPY,
    PYTHON,
    Frame,
    Generator,
    HostGenerator,
    States,
    frames_recording,
    install,
    needed,
    set_states,
    states_of,
)
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, batch, summed
from tests.toys.chains import InTurn
from tests.toys.told import Told, around, with_linear

DRAWS: dict[str, Callable[[], object]] = {
    "one normal": numpy.random.normal,  # every second takes what the first has left over, and moves nothing else
    "two normals": lambda: numpy.random.normal(size=2),
    "uniform": numpy.random.uniform,
    "seed": lambda: numpy.random.seed(3),
    "Python's": random.random,
    "Python's gauss": lambda: random.gauss(0, 1),
}


def chain(drawing: set[int], glue: set[int]) -> nn.Module:
    """Members 0 to 3, some of which draw; `glue` says after which of them the parent draws."""
    torch.manual_seed(0)
    stages = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3) if i in drawing else nn.Tanh()) for i in range(4))
    return InTurn(stages, lambda i, stage, x: stage(x) * torch.rand(1) if i in glue else stage(x))


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
    plan = [[f"blocks.{i}" for i in range(4)]]
    model = chain(drawing, glue)
    install(model, Plan.of(plan))
    loss = model(batch(4, WIDTH)).sum()
    (frame,) = frames
    assert sum(len(call.random) for call in frame.calls) == kept
    del loss
    assert_same(chain(drawing, glue), plan, summed)


def test_backward_leaves_the_generator_where_it_was() -> None:
    model = chain({0, 1}, set())
    install(model, Plan.of([["blocks.0", "blocks.1"]]))
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


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([*DRAWS]), max_size=3),
    st.lists(st.sampled_from([*DRAWS]), max_size=3),
    st.sampled_from([PYTHON, NUMPY]),
)
def test_a_generator_of_the_host_knows_whether_it_has_moved(
    first: list[str], then: list[str], generator: HostGenerator
) -> None:
    for each in first:
        DRAWS[each]()
    before = generator.read()
    for each in then:
        DRAWS[each]()
    assert generator.is_at(before) == (generator.read() == before)
    ((_, found),) = states_of([generator], {generator: before})
    assert found == generator.read()


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


def reseeds(own: Told, x: Tensor) -> Any:
    """A unit that sets the generator, wherever it was."""
    torch.manual_seed(3)
    return own.linear(x)


def reseeding(own: Told, x: Tensor) -> Tensor:
    """Draws after each of two units that seed alike."""
    for unit in (own.first, own.second):
        x = nn.functional.dropout(unit(x).tanh(), 0.3).sin()
    return x


def forking(own: Told, x: Tensor) -> Tensor:
    """Draws in a fork, with a unit inside it and one after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        x = own.first(x * torch.rand_like(x)).tanh()
    return torch.sin(own.second(x).tanh())


def forking_on(own: Told, x: Tensor) -> Tensor:
    """Draws in a fork that goes on from where a unit stopped, as the next unit does."""
    x = own.first(own.linear(x)).tanh()
    with torch.random.fork_rng(devices=[]):
        x = torch.sin(x * torch.rand_like(x))
    return torch.sin(own.second(x).tanh())


MEMBERS: dict[str, Callable[[], nn.Module]] = {
    "Reseeding": lambda: Told(reseeding, first=with_linear(reseeds), second=with_linear(reseeds)),
    "Forking": lambda: Told(forking, first=nn.Linear(WIDTH, WIDTH), second=nn.Linear(WIDTH, WIDTH)),
    "ForkingOn": lambda: with_linear(forking_on, first=nn.Dropout(0.3), second=nn.Dropout(0.3)),
}


@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_units_between_which_the_generator_comes_back_to_a_state(member: Callable[[], nn.Module]) -> None:
    """Both ends of a unit count: a look at its end alone makes the first two of these inexact.

    So does the third what leaves out where a unit stopped, because the next begins there.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(member(), nn.Dropout(0.2)) for _ in range(3)))
    segment = Segment(calls=("1.0#0",), keep=("1.0.first#0", "1.0.second#0"))
    assert_same(model, Plan(segments=(segment,)), summed)


def draws_from_given(own: Told, x: Tensor, generator: torch.Generator) -> Tensor:
    """A unit that draws from the generator that it is given."""
    return torch.tanh(x) * torch.rand(x.shape, generator=generator)


def gives_on(own: Told, x: Tensor, generator: torch.Generator) -> Tensor:
    """Gives its generator to a unit, and then draws from it."""
    x = own.unit(own.linear(x).sin(), generator=generator)
    return torch.sin(x * torch.rand(x.shape, generator=generator)).square()


def makes() -> nn.Module:
    """Makes a generator in each forward."""
    giving = with_linear(gives_on, unit=Told(draws_from_given))
    return around(giving, lambda inner, x: inner(x, torch.Generator().manual_seed(5)))


def test_a_kept_unit_may_draw_from_a_generator_that_it_is_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(makes() for _ in range(3)))
    assert_same(model, Plan(segments=(Segment(calls=("1.inner#0",), keep=("1.inner.unit#0",)),)), summed)


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
