from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import Dataflow, InvalidProblem, Item, Unit

from .flows import dataflows, every_choice

ROW = Dataflow(
    units=(
        Unit(name="norm", seconds=1.0, reads=(0,), makes=(1,)),
        Unit(name="fc", seconds=8.0, reads=(1,), makes=(2,)),
        Unit(name="gelu", seconds=2.0, reads=(2,), makes=(3,)),
        Unit(name="proj", seconds=8.0, reads=(3,), makes=(4,)),
    ),
    items=(
        Item(bytes=10, saved=True),
        Item(bytes=10, saved=True),
        Item(bytes=40, saved=True),
        Item(bytes=40, saved=True),
        Item(bytes=10, free=True),
    ),
)


def test_a_kept_unit_is_held_and_what_nothing_needs_is_skipped() -> None:
    decided = ROW.decisions([0, 2])
    assert decided.recompute == (0, 2)
    assert ROW.held([0, 2]) == (0, 2)
    assert decided.held_bytes == 50
    assert decided.recompute_seconds == 3.0


def test_what_is_kept_costs_the_host_something_where_anything_is_recomputed() -> None:
    assert ROW.decisions([], kept_seconds=10.0).recompute_seconds == 0.0
    assert ROW.decisions([0, 1, 2], kept_seconds=10.0).recompute_seconds == 11.0
    assert ROW.decisions([1], kept_seconds=10.0).recompute_seconds == 8.0 + 2 * 10.0


def test_nothing_recomputed_is_the_plain_block() -> None:
    assert ROW.decisions([]).held_bytes == ROW.plain_bytes == 100


@settings(max_examples=200)
@given(dataflows())
def test_every_choice_can_be_replayed_from_what_it_holds(flow: Dataflow) -> None:
    for decided in every_choice(flow):
        held = flow.held(decided.recompute)
        alive = set(held)
        for u in decided.recompute:
            assert alive.issuperset(set(flow.units[u].reads) - set(flow.units[u].makes))
            alive.update(flow.units[u].makes)
        assert alive.issuperset(t for t, item in enumerate(flow.items) if item.saved)
        if decided.recompute:
            assert all(flow.items[t].holdable for t in held)
            assert all(flow.units[u].keepable for t in held for u in flow.makers[t])


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([Unit(name="a", seconds=-1.0)], "costs -1.0 seconds"),
        ([Unit(name="a", seconds=float("nan"))], "costs nan seconds"),
        ([Unit(name="a", seconds=0.0, reads=(2,))], "item 2 of 2"),
        ([Unit(name="a", seconds=0.0, reads=(0,), makes=(0,))], "reads item 0 before it is made"),
        ([Unit(name="a", seconds=0.0, reads=(0,)), Unit(name="b", seconds=0.0, makes=(0,))], "before it is made"),
    ],
)
def test_contradictory_dataflows_are_refused(units: list[Unit], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        Dataflow(units=tuple(units), items=(Item(bytes=1, saved=True), Item(bytes=1)))


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(InvalidProblem, match="negative bytes -1"):
        Dataflow(units=(), items=(Item(bytes=-1),))


@given(st.sampled_from([([4], "unit 4 of 4"), ([-1], "unit -1 of 4")]))
def test_unknown_units_are_refused(case: tuple[list[int], str]) -> None:
    with pytest.raises(InvalidProblem, match=case[1]):
        ROW.decisions(case[0])


def test_units_that_write_one_tensor_share_their_fate() -> None:
    flow = Dataflow(
        units=(
            Unit(name="conv", seconds=1.0, reads=(0,), makes=(1,)),
            Unit(name="relu_", seconds=1.0, reads=(1,), makes=(1,), keepable=False),
        ),
        items=(Item(bytes=1, saved=True), Item(bytes=1, saved=True)),
    )
    assert flow.groups == ((0, 1), (0, 1))
    with pytest.raises(InvalidProblem, match="both or neither"):
        flow.decisions([0])
