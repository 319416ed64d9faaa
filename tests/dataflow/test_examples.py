"""The worked examples of the docstrings, against the numbers that they work out by hand."""

from __future__ import annotations

import doctest
import sys
from types import FunctionType

import pytest

from autockpt.solvers import Dataflow, Item, Lives, Unit, make_menu, peak_bound
from tests.doors import hull

FLOW = Dataflow(
    units=(
        Unit(name="fc", seconds=4.0, reads=(0,), makes=(1,)),
        Unit(name="gelu", seconds=1.0, reads=(1,), makes=(2,)),
    ),
    items=(Item(bytes=2, saved=True), Item(bytes=8, saved=True), Item(bytes=8, saved=True)),
)


def test_min_cut() -> None:
    choices = [FLOW.decisions(units) for units in hull(FLOW)]
    assert [(each.held_bytes, each.recompute_seconds) for each in choices] == [(18, 0.0), (10, 1.0), (2, 5.0)]


@pytest.mark.parametrize(("room_bytes", "seconds"), [(16, 0.0), (10, 0.75), (4, 3.0), (0, 5.0)])
def test_bound(room_bytes: int, seconds: float) -> None:
    outside = Item(bytes=2, saved=True, free=True)
    flow = Dataflow(units=FLOW.units, items=(outside, *FLOW.items[1:]))
    lives = Lives(base_bytes=(0, 100, 0), run_step=(0, 0), free_step=(1, 1, 1), read_steps=((2,), (2,), (2,)))
    assert peak_bound(flow, lives, 100 + room_bytes).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("public", [Dataflow, make_menu, hull, peak_bound], ids=lambda each: each.__name__)
def test_examples_in_docstrings_run(public: type | FunctionType) -> None:
    assert doctest.testmod(sys.modules[public.__module__]).failed == 0
