"""Whatever a plan recomputes of whatever model, nothing changes; and the drawing is good enough to show it.

make fuzz     the same with 2,000 cases
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase

from tests.doors import Around, ModuleState, UnitRun, frames_held, frames_recording, frames_slots, frames_state
from tests.fuzz.check import Difference, PlainFails, check
from tests.fuzz.plans import HIDDEN_STATE
from tests.fuzz.run import LEAST_SELECTIVE_SHARE, LEAST_SHARE, Tally, fuzz
from tests.fuzz.strategy import cases
from tests.fuzz.tree import Case, Choice, How, N, kinds_in

CASES = 100

ENOUGH = 150
"""Cases within which a planted bug must be found."""

LATE = 600
"""The same, for those of the sweep."""


def test_any_plan_of_any_model(capsys: pytest.CaptureFixture[str]) -> None:
    tally = fuzz(CASES)
    with capsys.disabled():
        print(f"\n{tally}")  # noqa: T201 - what was refused, and how often, is what this test is about
    assert len(tally.verdicts) == CASES
    assert tally.share >= LEAST_SHARE
    assert tally.selective_share >= LEAST_SELECTIVE_SHARE


def test_a_model_that_itself_fails_by_chance_is_no_difference() -> None:
    """Its plain steps dropped a layer that the recorded one did not, which changes what its backward needs."""
    inside = N("Layerdrop", N("HostRandom"), N("DropoutInplace"))
    with pytest.raises(PlainFails, match="modified by an inplace operation"):
        check(Case(N("List", N("LeavesTensors", inside)), How(), Choice()))


def no_random_state() -> Any:
    return mock.patch.object(frames_recording, "needed", lambda before, reached: [])


def statistics_twice() -> Any:
    return mock.patch.object(ModuleState, "replayed", lambda self, forward, undo: forward)


def no_keywords() -> Any:
    replayed: Callable[..., Any] = ModuleState.replayed

    def broken(self: ModuleState, forward: Any, undo: Any) -> Any:
        whole = replayed(self, forward, undo)
        return lambda *args, **kwargs: whole(*args)

    return mock.patch.object(ModuleState, "replayed", broken)


def flags_of_now() -> Any:
    """Doubles have the training flags of the replay's time."""
    replayed: Callable[..., Any] = ModuleState.replayed

    def broken(self: ModuleState, forward: Any, undo: Any) -> Any:
        for module, found in zip(self._tree.modules, self._tree.contents, strict=True):
            found["training"] = module.training
        return replayed(self, forward, undo)

    return mock.patch.object(ModuleState, "replayed", broken)


def no_autocast() -> Any:
    return mock.patch.object(Around, "put_back", lambda self, undo: None)


def buffers_of_now() -> Any:
    replayed: Callable[..., Any] = ModuleState.replayed

    def broken(self: ModuleState, forward: Any, undo: Any) -> Any:
        self._changing = [(tensor, tensor.detach().clone()) for tensor, _ in self._changing]
        return replayed(self, forward, undo)

    return mock.patch.object(ModuleState, "replayed", broken)


def changes_unseen() -> Any:
    stack = contextlib.ExitStack()
    for module in (frames_held, frames_slots, frames_state):
        stack.enter_context(mock.patch.object(module, "check_unchanged", lambda *args: None))
    return stack


def draws_of_units_lost() -> Any:
    """Replays go on with the numbers that a unit took in forward."""
    taken = UnitRun.__init__

    def broken(self: UnitRun, *args: Any, random: Any, **others: Any) -> None:
        taken(self, *args, random=[], **others)

    return mock.patch.object(UnitRun, "__init__", broken)


PLANTED = [
    (no_random_state, ENOUGH),
    # What the suite finds is asked by tests/planted; what the drawing alone finds, by these.
    *(
        pytest.param(plant, ENOUGH, marks=pytest.mark.sweep)
        for plant in (statistics_twice, no_keywords, flags_of_now, buffers_of_now)
    ),
    # Found late. Draws of units have tests of their own (tests/frames/test_units.py).
    *(
        pytest.param(plant, LATE, marks=pytest.mark.sweep)
        for plant in (no_autocast, changes_unseen, draws_of_units_lost)
    ),
]


@pytest.mark.parametrize(("plant", "cases_enough"), PLANTED)
def test_a_planted_bug_is_found(plant: Callable[[], Any], cases_enough: int) -> None:
    """With no comparison to recover from it."""
    plain = cases().filter(lambda case: not kinds_in(case.tree) & HIDDEN_STATE)
    tally, unchecked = Tally(), plain.map(lambda case: replace(case, how=replace(case.how, check=False)))
    with plant(), mock.patch("tests.fuzz.run.cases", lambda: unchecked), pytest.raises(Difference):
        fuzz(cases_enough, phases=[Phase.generate], tally=tally)
    assert len(tally.verdicts) < cases_enough
