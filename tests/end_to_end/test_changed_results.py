"""Results that are changed in place behind a block: what a plan leaves alone there, and what that holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from autockpt.solvers import simulate
from tests.doors import find_candidates, install, segments_of
from tests.frames.comparing import steps
from tests.fuzz.units import without_host
from tests.toys.chains import InTurn
from tests.toys.told import Told, around, with_linear

WIDTH, ROWS = 16, 512

SCALAR_BYTES = 4
"""The loss, which the caller holds or not."""


def both() -> nn.Module:
    one, other = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
    return Told(lambda own, x: (own.one(x), own.other(x)), one=one, other=other)


def call_of_two(own: Told, x: Tensor) -> Any:
    """A call returns two results, of which one is handed on and the other read."""
    one, other = own.both(x)
    return one, torch.tanh(own.linear(other.sin().sin()))


def function_of_two(own: Told, x: Tensor) -> Any:
    """So does a torch function."""
    values, places = torch.sort(own.inner(x), dim=-1)
    return values, torch.tanh(own.linear((places.float() / WIDTH).sin().sin()))


def read(own: Told, x: Tensor) -> Any:
    """What is handed on is read inside, too."""
    y = own.linear(x)
    return y, own.outer(torch.cat([y, y, y, y], -1).sin())


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "CallOfTwo": lambda: with_linear(call_of_two, WIDTH, both=both()),
    "FunctionOfTwo": lambda: with_linear(function_of_two, WIDTH, inner=nn.Linear(WIDTH, WIDTH)),
    "Read": lambda: with_linear(read, WIDTH, outer=nn.Linear(4 * WIDTH, WIDTH)),
}


def changing(block: Callable[[], nn.Module], changed: Callable[[int], bool]) -> nn.Module:
    """Changes the first results of some of its blocks, which are alike but for that."""
    torch.manual_seed(0)

    def run(number: int, block: nn.Module, x: Tensor) -> Any:
        one, other = block(x)
        if changed(number):
            one += other
        else:
            one = one + other
        return one.relu()

    return InTurn((block() for _ in range(4)), run)


def first(number: int) -> bool:
    return number == 0


def later(number: int) -> bool:
    return number > 0


def every(number: int) -> bool:
    return True


@pytest.mark.parametrize("changed", [first, later, every])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_every_candidate_is_exact(block: Callable[[], nn.Module], changed: Callable[[int], bool]) -> None:
    """Kept units handed out results that had been changed, and calls that are alike were all taken for the first."""
    model, batch = changing(block, changed), torch.randn(ROWS, WIDTH)
    candidates = find_candidates(without_host(autockpt.profile(model, batch), dice=0))
    expected = steps(copy.deepcopy(model), lambda model: model(batch).square().mean())
    kept = 0
    for index, run in enumerate(candidates.replays):
        planned = copy.deepcopy(model)
        install(planned, Plan(segments=segments_of(candidates, [index])))
        found = steps(planned, lambda model: model(batch).square().mean())
        assert expected.differences(found) == [], candidates.problem.candidates[index].name
        kept += bool(run.segment.keep)
    assert kept


def accumulates() -> nn.Module:
    """Adds to what its parts return in place, the last of which saves more than it is given."""
    body, other = (nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH)) for _ in range(2))

    def adds(own: Told, x: Tensor) -> Any:
        y = own.body(x)
        y += x
        z = own.other(y.relu())
        z += y
        return z.relu()

    return Told(adds, body=body, other=other)


def test_what_changes_after_a_run_is_not_held_and_need_not_be_made_again() -> None:
    """A norm whose result was added to ran in every replay: what it saves for itself could not be kept without it."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(*(accumulates() for _ in range(3))), torch.randn(ROWS, WIDTH)
    profile = without_host(autockpt.profile(model, batch), dice=0)
    candidates = find_candidates(profile)
    norms = {f"{block}.{part}.1#0/batch_norm#0" for block in range(3) for part in ("body", "other")}
    segments = segments_of(candidates, range(len(candidates.replays)))
    assert norms <= {unit for segment in segments for unit in segment.skip}
    assert norms.isdisjoint(unit for segment in segments for unit in segment.keep)
    expected = steps(copy.deepcopy(model), lambda model: model(batch).square().mean())
    for index in range(len(candidates.replays)):
        planned = copy.deepcopy(model)
        install(planned, Plan(segments=segments_of(candidates, [index])))
        assert expected.differences(steps(planned, lambda model: model(batch).square().mean())) == []


def unread(own: Told, x: Tensor) -> Tensor:
    """Adds a result that nothing saves to what it makes of the other."""
    one, other = own.both(x)
    return torch.tanh(own.linear(other.sin().sin().sin()) + one)


def test_results_that_a_kept_unit_returns_are_held_whether_or_not_they_are_read() -> None:
    """Budgets were exceeded by them."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(with_linear(unread, WIDTH, both=both()) for _ in range(6)))
    model, batch = around(blocks, lambda blocks, x: blocks(x).square().mean()), torch.randn(ROWS, WIDTH)
    profile = without_host(autockpt.profile(model, batch), dice=0)
    candidates = find_candidates(profile)
    segments = segments_of(candidates, range(len(candidates.replays)))
    keeping = [i for i, segment in enumerate(segments) if any(".both." in unit for unit in segment.keep)]
    assert keeping
    static_bytes = profile.static.total_bytes

    def measured(model: nn.Module) -> int:
        model(batch).backward()
        model.zero_grad()
        return autockpt.measure(lambda: model(batch).backward(), device="cpu").step_bytes

    plain_bytes = simulate(candidates.problem, ()).peak_bytes - static_bytes
    assert plain_bytes == pytest.approx(measured(model), abs=SCALAR_BYTES)
    for index in keeping:
        planned = copy.deepcopy(model)
        install(planned, Plan(segments=segments_of(candidates, [index])))
        predicted = simulate(candidates.problem, (index,)).peak_bytes - static_bytes
        assert predicted == pytest.approx(measured(planned), abs=SCALAR_BYTES), candidates.problem.candidates[
            index
        ].name
