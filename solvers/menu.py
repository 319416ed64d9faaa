"""The menu of a block: the selective ways to recompute it that are worth having.

seconds
  │ o                                o  on the hull: best for some price on bytes
  │  ·                               ·  between: best for some number of bytes only
  │    o
  │       ·  ·                       The plain block (all held, no seconds) is not on the menu,
  │            o                     nor is anything that it beats.
  └──────────────────o plain
                 held bytes
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from .closure import hull
from .dataflow import Dataflow, HostSeconds
from .pareto import frontier

__all__ = ["MOST_ENTRIES", "Entry", "Menu", "make_menu"]

MOST_ENTRIES = 32

SHARE = 0.8
"""Share of the time limit after which the frontier is given up, so that what was found can still be sorted out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One way to recompute a block.

    Attributes:
        recompute: units that run again.
        keep: units of which something is held instead.
        skip: units that neither run again nor are held.
        held_bytes: what stays held from forward on, boundary included, free items left out.
        recompute_seconds: of the recomputed units, and of the host.
        on_hull: whether it is best for some price on bytes, among the entries and the plain block.
    """

    recompute: tuple[int, ...]
    keep: tuple[int, ...]
    skip: tuple[int, ...]
    held_bytes: int
    recompute_seconds: float
    on_hull: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """Entries of which none holds as few bytes in as few seconds as another.

    Attributes:
        entries: most bytes first.
        plain_bytes: held where nothing is recomputed.
        whole: whether the hull and the frontier between its points are known to the end. Otherwise the time was
            too short or the block too wide, and the entries are the part of the hull that was found, and the whole
            block.
        late: whether it was the time that was too short, so that more of it may find more.
        left_out: entries dropped for the sake of a short menu.
    """

    entries: tuple[Entry, ...]
    plain_bytes: int
    whole: bool
    late: bool
    left_out: int


def make_menu(
    flow: Dataflow,
    host: HostSeconds | None = None,
    *,
    time_limit_seconds: float = 0.5,
    most_entries: int = MOST_ENTRIES,
) -> Menu:
    """Find the ways to recompute a block that are worth having.

    Host seconds of kept units decide along with the units' own; those of the segment and of the function mode do
    not add up over units, so each choice is charged for them afterwards, and choices that leave all functions
    alone, hence need no function mode, are looked for as well.

    Args:
        flow: the block.
        host: what a selective segment costs the host; None counts nothing.
        time_limit_seconds: after so long the hull alone is returned, or what is known of it.
        most_entries: a longer menu loses entries between hull points, those first that are missed least.

    Returns:
        The menu; empty where no way is better than the plain block.

    Example:
        >>> from autockpt.solvers.dataflow import Dataflow, Item, Unit
        >>> from autockpt.solvers.menu import make_menu
        >>> flow = Dataflow(
        ...     units=(
        ...         Unit(name="fc", seconds=4.0, reads=(0,), makes=(1,)),
        ...         Unit(name="gelu", seconds=1.0, reads=(1,), makes=(2,)),
        ...     ),
        ...     items=(Item(bytes=2, saved=True), Item(bytes=8, saved=True), Item(bytes=8, saved=True)),
        ... )
        >>> [(entry.held_bytes, entry.recompute_seconds) for entry in make_menu(flow).entries]
        [(10, 1.0), (2, 5.0)]

    Source: the parametric programme of `closure.hull`, and the frontier of `pareto.frontier` between its points.
    Exact for the stated costs if the menu is whole and nothing was left out, but for the rounding that
    `pareto.frontier` states, and for `seen_function_seconds`, which do not add up over units: an entry that pays them
    is the best of those with as many bytes before they are counted. See there for the complexity.
    """
    host = host or HostSeconds()
    begun = time.perf_counter()
    deadline = begun + SHARE * time_limit_seconds
    vertices, complete = hull(flow, host, deadline=deadline)
    choices = [*vertices, flow.whole()]
    whole = complete
    if complete:
        dearest = max(flow.decisions(units, host).recompute_seconds for units in choices)
        modes = [False]
        if host.seen_function_seconds and any(flow.needs_mode):
            modes.append(True)
        for no_mode in modes:
            found = frontier(
                flow,
                host,
                no_mode=no_mode,
                most_seconds=dearest,
                deadline=deadline,
            )
            whole = whole and found is not None
            choices += found or ()
    late = not whole and time.perf_counter() > deadline
    entries = _undominated(flow, host, choices)
    short = _shorten(entries, most_entries)
    return Menu(entries=short, plain_bytes=flow.plain_bytes, whole=whole, late=late, left_out=len(entries) - len(short))


def _undominated(flow: Dataflow, host: HostSeconds, choices: Iterable[tuple[int, ...]]) -> tuple[Entry, ...]:
    """Charge the choices in full; leave out what another, or the plain block, equals or beats."""
    charged = [flow.decisions(units, host) for units in dict.fromkeys(choices) if units]
    charged.sort(key=lambda one: (one.held_bytes, one.recompute_seconds, len(one.recompute)))
    best, least_seconds = [], float("inf")
    for one in charged:
        if one.recompute_seconds < least_seconds and one.held_bytes < flow.plain_bytes:
            best.append(one)
            least_seconds = one.recompute_seconds
    points = [(flow.plain_bytes, 0.0), *((one.held_bytes, one.recompute_seconds) for one in reversed(best))]
    corners = _corners(points)
    return tuple(
        Entry(
            recompute=one.recompute,
            keep=one.keep,
            skip=one.skip,
            held_bytes=one.held_bytes,
            recompute_seconds=one.recompute_seconds,
            on_hull=(one.held_bytes, one.recompute_seconds) in corners,
        )
        for one in reversed(best)
    )


def _corners(points: list[tuple[int, float]]) -> set[tuple[int, float]]:
    """Points on the lower hull; bytes fall and seconds rise from each to the next."""
    corners: list[tuple[int, float]] = []
    for point in points:
        while len(corners) > 1 and _above(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return set(corners)


def _above(left: tuple[int, float], middle: tuple[int, float], right: tuple[int, float]) -> bool:
    """Whether `middle` lies above the line from `left` to `right`."""
    return (middle[1] - left[1]) * (left[0] - right[0]) > (right[1] - left[1]) * (left[0] - middle[0])


def _shorten(entries: tuple[Entry, ...], most_entries: int) -> tuple[Entry, ...]:
    """Drop entries between hull points until few enough are left.

    What is missed without an entry: for budgets between it and the next larger one, the seconds to the next.
    """
    left = list(entries)
    while len(left) > most_entries:
        missed = {
            i: (left[i - 1].held_bytes - left[i].held_bytes)
            * (left[i + 1].recompute_seconds - left[i].recompute_seconds)
            for i in range(1, len(left) - 1)
            if not left[i].on_hull
        }
        if not missed:
            break
        del left[min(missed, key=lambda i: missed[i])]
    return tuple(left)
