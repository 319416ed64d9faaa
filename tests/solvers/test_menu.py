from __future__ import annotations

from hypothesis import given, settings

from autockpt.solvers.closure import hull
from autockpt.solvers.dataflow import Dataflow, HostSeconds, Item, Unit
from autockpt.solvers.menu import make_menu
from autockpt.solvers.pareto import frontier

from .flows import dataflows, every_choice, hosts, undominated

PLENTY = 60.0


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
    free_host = HostSeconds()
    choices = [c for c in every_choice(flow) if c.recompute or not flow.must_recompute]
    points = [(c.held_bytes, sum(flow.units[u].seconds for u in c.recompute)) for c in choices]
    vertices, complete = hull(flow, free_host)
    assert complete
    found = [flow.decisions(units) for units in vertices]
    assert [c.held_bytes for c in found] == sorted((c.held_bytes for c in found), reverse=True)
    corners = [(c.held_bytes, sum(flow.units[u].seconds for u in c.recompute)) for c in found]
    assert set(corners) <= set(undominated(points))
    assert set(lower_hull(points)) <= set(corners)


@settings(max_examples=250)
@given(dataflows(max_units=8))
def test_the_frontier_is_that_of_all_choices(flow: Dataflow) -> None:
    choices = [c for c in every_choice(flow) if c.recompute or not flow.must_recompute]
    expected = undominated([(c.held_bytes, c.recompute_seconds) for c in choices if c.held_bytes <= flow.plain_bytes])
    found = frontier(flow)
    assert found is not None
    decided = [flow.decisions(units) for units in found]
    assert [(c.held_bytes, c.recompute_seconds) for c in decided] == expected


@settings(max_examples=250)
@given(dataflows(max_units=7, single_result=True), hosts)
def test_the_menu_misses_nothing_with_host_seconds(flow: Dataflow, host: HostSeconds) -> None:
    menu = make_menu(flow, host, time_limit_seconds=PLENTY, most_entries=1000)
    choices = [c for c in every_choice(flow, host) if c.recompute and c.held_bytes < flow.plain_bytes]
    if not host.seen_function_seconds:
        expected = undominated([(c.held_bytes, c.recompute_seconds) for c in choices])
        assert [(e.held_bytes, e.recompute_seconds) for e in reversed(menu.entries)] == expected
    # Those seconds do not add up over units. Whatever a function mode may cost, no choice is cheaper by more.
    every_mode_seconds = host.seen_function_seconds * sum(n for n in flow.functions.values() if n > 1)
    for choice in choices:
        idle = (*choice.keep, *(unit for unit in choice.skip if unit < choice.stop))
        slack = every_mode_seconds if any(flow.needs_mode[unit] for unit in idle) else 0.0
        assert any(
            e.held_bytes <= choice.held_bytes and e.recompute_seconds <= choice.recompute_seconds + slack
            for e in menu.entries
        )
    assert menu.whole and not menu.left_out
    assert menu.plain_bytes == flow.plain_bytes
    points = [(menu.plain_bytes, 0.0), *((e.held_bytes, e.recompute_seconds) for e in menu.entries)]
    corners = set(lower_hull(points))
    assert all(e.on_hull for e in menu.entries if (e.held_bytes, e.recompute_seconds) in corners)


@settings(max_examples=150)
@given(dataflows(max_units=7), hosts)
def test_what_is_on_the_menu_is_true(flow: Dataflow, host: HostSeconds) -> None:
    menu = make_menu(flow, host, time_limit_seconds=PLENTY, most_entries=4)
    for entry in menu.entries:
        decided = flow.decisions(entry.recompute, host)
        assert (decided.keep, decided.skip) == (entry.keep, entry.skip)
        assert (decided.held_bytes, decided.recompute_seconds) == (entry.held_bytes, entry.recompute_seconds)
        assert entry.held_bytes < menu.plain_bytes
    between = [e for e in menu.entries if not e.on_hull]
    assert len(menu.entries) <= 4 or len(between) <= 2  # the ends stay in any case
    held = [e.held_bytes for e in menu.entries]
    seconds = [e.recompute_seconds for e in menu.entries]
    assert held == sorted(set(held), reverse=True)
    assert seconds == sorted(set(seconds))


def pairs(n: int) -> Dataflow:
    """Independent pairs, each with its own bytes and seconds: 2ⁿ points, most of them undominated."""
    units, items = [], []
    for i in range(n):
        items += [Item(bytes=1, saved=True, free=True), Item(bytes=3**i % 1009 + 2**i, saved=True)]
        units.append(Unit(name=f"u{i}", seconds=float(2**i), reads=(2 * i,), makes=(2 * i + 1,)))
    return Dataflow(units=tuple(units), items=tuple(items))


def test_without_time_the_hull_or_a_part_of_it_is_returned() -> None:
    flow = pairs(40)
    at_once = make_menu(flow, time_limit_seconds=0.0)
    assert not at_once.whole and at_once.late
    assert [e.held_bytes for e in at_once.entries] == [0]
    given_up = make_menu(flow, time_limit_seconds=PLENTY, most_entries=10**6)
    assert not given_up.whole and not given_up.late  # too many rows
    assert all(e.on_hull for e in given_up.entries)
    assert len(given_up.entries) >= 30


def test_too_many_items_at_one_time_leave_the_hull() -> None:
    n = 40
    units = [Unit(name=f"u{i}", seconds=float(i + 2), makes=(i,)) for i in range(n)]
    units.append(Unit(name="cat", seconds=1.0, reads=tuple(range(n)), makes=(n,)))
    flow = Dataflow(units=tuple(units), items=tuple(Item(bytes=1, saved=True) for _ in range(n + 1)))
    assert frontier(flow) is None
    menu = make_menu(flow, time_limit_seconds=PLENTY)
    assert not menu.whole and not menu.late
    held = [e.held_bytes for e in menu.entries]
    assert held[:9] == list(range(n, n - 9, -1))
    assert held[-1] == 0


def test_a_dataflow_with_nothing_to_gain_has_an_empty_menu() -> None:
    flow = Dataflow(units=(Unit(name="a", seconds=1.0, reads=(0,)),), items=(Item(bytes=4, saved=True),))
    assert make_menu(flow).entries == ()
    assert make_menu(Dataflow(units=(), items=())).entries == ()
