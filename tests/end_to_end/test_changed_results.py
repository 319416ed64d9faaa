"""Results that are changed in place behind a block: what a plan leaves alone there, and what that holds."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from autockpt.solvers import simulate
from tests.doors import find_candidates, install, segments_of
from tests.frames.comparing import steps
from tests.fuzz.units import without_host

WIDTH, ROWS = 16, 512

SCALAR_BYTES = 4
"""The loss, which the caller holds or not."""


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.other(x)


class CallOfTwo(nn.Module):
    """A call returns two results, of which one is handed on and the other read."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.up = Both(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = self.both(x)
        return one, torch.tanh(self.up(other.sin().sin()))


class FunctionOfTwo(nn.Module):
    """So does a torch function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.sort(self.inner(x), dim=-1)
        return values, torch.tanh(self.up((places.float() / WIDTH).sin().sin()))


class Read(nn.Module):
    """What is handed on is read inside, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y, self.outer(torch.cat([y, y, y, y], -1).sin())


class Model(nn.Module):
    """Changes the first results of some of its blocks, which are alike but for that."""

    def __init__(self, block: Callable[[], nn.Module], changed: Callable[[int], bool]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.changed = nn.ModuleList(block() for _ in range(4)), changed

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            one, other = block(x)
            if self.changed(number):
                one += other
            else:
                one = one + other
            x = one.relu()
        return x


def first(number: int) -> bool:
    return number == 0


def later(number: int) -> bool:
    return number > 0


def every(number: int) -> bool:
    return True


@pytest.mark.parametrize("changed", [first, later, every])
@pytest.mark.parametrize("block", [CallOfTwo, FunctionOfTwo, Read])
def test_every_candidate_is_exact(block: Callable[[], nn.Module], changed: Callable[[int], bool]) -> None:
    """Kept units handed out results that had been changed, and calls that are alike were all taken for the first."""
    model, batch = Model(block, changed), torch.randn(ROWS, WIDTH)
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


class Accumulates(nn.Module):
    """Adds to what its parts return in place, the last of which saves more than it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.other = self.part(), self.part()

    @staticmethod
    def part() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += x
        z = self.other(y.relu())
        z += y
        out: Tensor = z.relu()
        return out


def test_what_changes_after_a_run_is_not_held_and_need_not_be_made_again() -> None:
    """A norm whose result was added to ran in every replay: what it saves for itself could not be kept without it."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(*(Accumulates() for _ in range(3))), torch.randn(ROWS, WIDTH)
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


class Unread(nn.Module):
    """Adds a result that nothing saves to what it makes of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.outer = Both(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.both(x)
        return torch.tanh(self.outer(other.sin().sin().sin()) + one)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Unread() for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.blocks(x).square().mean()
        return loss


def test_results_that_a_kept_unit_returns_are_held_whether_or_not_they_are_read() -> None:
    """Budgets were exceeded by them."""
    model, batch = Loss(), torch.randn(ROWS, WIDTH)
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
