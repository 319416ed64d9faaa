from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import Dataflow, Item, Unit, make_menu
from tests.doors import hull

from .flows import dataflows, every_choice, undominated

kept = st.sampled_from((0.0, 0.25))


def lower_hull(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Corners by asking of every point whether some mix of two others is as good."""
    best = undominated(points)

    def mixed(middle: tuple[int, float]) -> bool:
        return any(
            left[0] < middle[0] < right[0]
            and left[1] + (right[1] - left[1]) * (middle[0] - left[0]) / (right[0] - left[0]) <= middle[1] + 1e-9
            for left in best
            for right in best
        )

    return [point for point in best if not mixed(point)]


@settings(max_examples=250)
@given(dataflows())
def test_the_hull_is_that_of_all_choices(flow: Dataflow) -> None:
    handed_out = all(flow.holdable[t] for t, item in enumerate(flow.items) if item.saved)
    choices = [c for c in every_choice(flow) if c.recompute or handed_out]
    points = [(c.held_bytes, sum(flow.units[u].seconds for u in c.recompute)) for c in choices]
    found = [flow.decisions(units) for units in hull(flow)]
    assert [c.held_bytes for c in found] == sorted((c.held_bytes for c in found), reverse=True)
    corners = [(c.held_bytes, sum(flow.units[u].seconds for u in c.recompute)) for c in found]
    assert set(corners) <= set(undominated(points))
    assert set(lower_hull(points)) <= set(corners)


@settings(max_examples=250)
@given(dataflows(max_units=7, single_result=True), kept)
def test_the_menu_has_what_is_best_for_any_price_on_bytes(flow: Dataflow, kept_seconds: float) -> None:
    menu = make_menu(flow, kept_seconds=kept_seconds)
    choices = [
        c for c in every_choice(flow, kept_seconds=kept_seconds) if c.recompute and c.held_bytes < flow.plain_bytes
    ]
    corners = lower_hull([(flow.plain_bytes, 0.0), *((c.held_bytes, c.recompute_seconds) for c in choices)])
    for held_bytes, seconds in set(corners) - {(flow.plain_bytes, 0.0)}:
        assert any(way.held_bytes <= held_bytes and way.recompute_seconds <= seconds for way in menu)


@settings(max_examples=150)
@given(dataflows(max_units=7), kept)
def test_what_is_on_the_menu_is_true(flow: Dataflow, kept_seconds: float) -> None:
    menu = make_menu(flow, kept_seconds=kept_seconds)
    for way in menu:
        assert way == flow.decisions(way.recompute, kept_seconds=kept_seconds)
        assert way.held_bytes < flow.plain_bytes
    held = [way.held_bytes for way in menu]
    seconds = [way.recompute_seconds for way in menu]
    assert held == sorted(set(held), reverse=True)
    assert seconds == sorted(set(seconds))


def test_a_block_of_many_units_has_a_menu() -> None:
    items, units = [], []
    for i in range(40):
        items += [Item(bytes=1, saved=True, free=True), Item(bytes=3**i % 1009 + 2**i, saved=True)]
        units.append(Unit(name=f"u{i}", seconds=float(2**i), reads=(2 * i,), makes=(2 * i + 1,)))
    menu = make_menu(Dataflow(units=tuple(units), items=tuple(items)))
    assert len(menu) >= 30
    assert menu[-1].held_bytes == 0


def test_a_dataflow_with_nothing_to_gain_has_an_empty_menu() -> None:
    flow = Dataflow(units=(Unit(name="a", seconds=1.0, reads=(0,)),), items=(Item(bytes=4, saved=True),))
    assert make_menu(flow) == ()
    assert make_menu(Dataflow(units=(), items=())) == ()


def test_an_empty_menu() -> None:
    assert make_menu(Dataflow(units=(), items=())) == ()
