"""Random dataflows, small enough for brute force: skips, several results, writes in place, what cannot be kept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from hypothesis import strategies as st

from autockpt.solvers import Dataflow, Decisions, InvalidProblem, Item, Unit


@st.composite
def dataflows(draw: st.DrawFn, *, max_units: int = 7, single_result: bool = False, free_hand: bool = False) -> Dataflow:
    """A dataflow of at most `max_units` units. With `free_hand` every unit can be kept."""
    n_outside = draw(st.integers(0, 2))
    n_items, written = n_outside, set[int]()
    units: list[Unit] = []
    for u in range(draw(st.integers(1, max_units))):
        reads = draw(st.lists(st.integers(0, n_items - 1), max_size=3, unique=True)) if n_items else []
        made = [n_items + i for i in range(draw(st.integers(0 if u else 1, 1 if single_result else 2)))]
        n_items += len(made)
        in_place = not free_hand and [t for t in reads if t >= n_outside] and not draw(st.integers(0, 5))
        if in_place:
            made.append(draw(st.sampled_from([t for t in reads if t >= n_outside])))
            written.add(made[-1])
        units.append(
            Unit(
                name=f"u{u}",
                seconds=draw(st.integers(0, 12)) / 8,
                reads=tuple(reads),
                makes=tuple(made),
                keepable=free_hand or not (in_place or not draw(st.integers(0, 5))),
            )
        )
    items = tuple(
        Item(
            bytes=draw(st.integers(0, 9)),
            saved=draw(st.booleans()),
            free=not draw(st.integers(0, 6)),
            holdable=free_hand or t < n_outside or bool(draw(st.integers(0, 6))),
        )
        for t in range(n_items)
    )
    return Dataflow(units=tuple(units), items=items)


def every_choice(flow: Dataflow, *, kept_seconds: float = 0.0) -> Iterator[Decisions]:
    """All that can be carried out, by trying all."""
    for picked in product((False, True), repeat=len(flow.units)):
        try:
            yield flow.decisions([u for u, again in enumerate(picked) if again], kept_seconds=kept_seconds)
        except InvalidProblem:
            continue


def undominated(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Points of which none is at most another in both, fewest bytes first."""
    best: list[tuple[int, float]] = []
    for point in sorted(set(points)):
        if not best or point[1] < best[-1][1] - 1e-9:
            best.append(point)
    return best
