"""Every kind of hidden state ends as its row says: exact, refused by name, or in an error in the step itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
import torch

import autockpt
from tests.doors import ReplayChecks
from tests.nets.arguments import ARGUMENTS
from tests.nets.attributes import ATTRIBUTES
from tests.nets.generators import GENERATORS, LaterInAttribute
from tests.nets.kernels import KERNELS
from tests.nets.kind import BLOCKS, EVERY_WAY, Kind, Network, Within, layers, plain_step
from tests.nets.storages import STORAGES
from tests.nets.surroundings import SURROUNDINGS
from tests.nets.twin import expected, outcome

KINDS = (*ARGUMENTS, *ATTRIBUTES, *GENERATORS, *KERNELS, *STORAGES, *SURROUNDINGS)


def rows() -> Iterator[object]:
    """Each kind one way with the suite, the ways in turn; every way in the sweep."""
    for number, kind in enumerate(KINDS):
        for turn, way in enumerate(EVERY_WAY):
            marks: list[pytest.MarkDecorator] = [] if turn == number % len(EVERY_WAY) else [pytest.mark.sweep]
            marks += [pytest.mark.xfail(reason=kind.waits[way], strict=True)] if way in kind.waits else []
            yield pytest.param(kind, way, id=f"{kind.name}, {way}", marks=marks)


@pytest.mark.parametrize(("kind", "way"), [*rows()])
def test_a_kind_ends_as_its_row_says(kind: Kind, way: str) -> None:
    found = outcome(kind, way)
    assert found in expected(kind, way), found.value


def raised(check: Literal["sampled", "always", "never"], block: int, steps: int, begins: int = 1) -> int:
    """Train a model of which one block changes from step `begins` on; return the step that raised, or `steps`."""
    torch.manual_seed(0)
    model = Network(LaterInAttribute).train()
    autockpt.apply(model, plan=autockpt.Plan.of(BLOCKS), check=check)
    for number in range(steps):
        [*layers(model)][block].late = number >= begins
        model.zero_grad()
        try:
            plain_step(model, number, False)
        except autockpt.ReplayError:
            return number
    return steps


def test_always_checks_every_segment_in_every_step() -> None:
    assert [raised("always", block, 8) for block in range(4)] == [1, 1, 1, 1]


def test_sampled_checks_one_segment_a_step_in_turn(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--check-always"):
        pytest.skip("nothing is sampled")
    found = [raised("sampled", block, 64, begins=2) for block in range(4)]  # the first two of each are compared
    assert len({*found}) == 4 and max(found) <= 17
    assert [raised("sampled", block, 64) for block in range(4)] == [1, 1, 1, 1]


def test_each_of_many_segments_has_its_turn(request: pytest.FixtureRequest) -> None:
    """Also where a plan has more of them than steps in which a few segments have theirs."""
    if request.config.getoption("--check-always"):
        pytest.skip("nothing is sampled")
    many = range(40)
    checks = ReplayChecks(len(many), always=False, governed=False)
    for known in (checks.findings.rehearsed, checks.findings.looked_again):
        known.update(many)
    compared = []
    for _ in many:
        checks.begin()
        compared += [segment for segment in many if checks.replayer(segment).compares]
    assert sorted(compared) == [*many]


def test_never_compares_nothing() -> None:
    assert raised("never", 0, 40) == 40


def test_an_rrelu_as_a_function_that_draws_no_noise_trains() -> None:
    torch.manual_seed(0)
    model = Network(lambda: Within(lambda x: torch.nn.functional.rrelu(x, training=False))).train()
    autockpt.apply(model, "lowest")
    for number in range(4):
        plain_step(model, number, False)
    assert autockpt.plan_of(model) is not None


def test_the_first_step_with_an_rrelu_as_a_function_raises_in_place_of_wrong_gradients() -> None:
    torch.manual_seed(0)
    model = Network(lambda: Within(lambda x: torch.nn.functional.rrelu(x, training=True))).train()
    autockpt.apply(model, "lowest")
    with pytest.raises(autockpt.NotApplicable, match="RReLU"):
        plain_step(model, 0, False)
