"""One step of the lower bound as a minimum closure: what is held there, and what is run again afterwards.

    node R   unit runs again after the step             costs seconds
    node A   item is there or made again, because a unit that runs again reads it      adds its bytes
    node M   item is made again, by all that write it   takes its bytes off; implies A, and R of each maker

An item that backward reads after the step needs no A: its bytes are there, or M takes them off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from .closure import TICKS, minimum_closure
from .dataflow import Dataflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A choice of nodes.

    Attributes:
        held_bytes: held in the step.
        ticks: seconds of the units that run again, in parts of a second, rounded down.
        units: those units.
    """

    held_bytes: int
    ticks: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The choices of one step.

    Attributes:
        room_bytes: most bytes that may be held.
        needed_bytes: held if nothing runs again.
        unit: per node, the unit it runs again, or -1.
        weights_bytes: per node, what choosing it adds to the held bytes.
        ticks: per node.
        implies: per node.
    """

    room_bytes: int
    needed_bytes: int
    unit: tuple[int, ...]
    weights_bytes: tuple[int, ...]
    ticks: tuple[int, ...]
    implies: tuple[tuple[int, ...], ...]

    def point(self, nodes: Iterable[int]) -> Point:
        """What a choice of nodes amounts to."""
        chosen = tuple(nodes)
        return Point(
            held_bytes=self.needed_bytes + sum(self.weights_bytes[n] for n in chosen),
            ticks=sum(self.ticks[n] for n in chosen),
            units=tuple(self.unit[n] for n in chosen if self.unit[n] >= 0),
        )

    def cheapest(self, byte_price: int, tick_price: int) -> Point:
        """The choice of least ``byte_price × bytes + tick_price × ticks``."""
        weights = [byte_price * b + tick_price * s for b, s in zip(self.weights_bytes, self.ticks, strict=True)]
        return self.point(minimum_closure(weights, self.implies))


def make_row(flow: Dataflow, *, room_bytes: int, needed: Set[int], others: Set[int], ran: Sequence[bool]) -> Row:
    """Make the row of a step.

    Args:
        flow: the ops.
        room_bytes: most bytes that may be held in the step.
        needed: items that backward reads after the step.
        others: items that it does not, but that units which run again may read.
        ran: per unit, whether it has run before the step, and may be worth running again after it.

    Returns:
        The row. Items in neither set are there in any case; units that have not run are not run again.

    Where several units write one item in place, only who reads the last version counts.
    Exact otherwise; O(units + items).
    """
    unit: list[int] = []
    weights: list[int] = []
    ticks: list[int] = []
    implies: list[list[int]] = []

    def add(u: int, weight: int, cost: int) -> int:
        unit.append(u)
        weights.append(weight)
        ticks.append(cost)
        implies.append([])
        return len(unit) - 1

    r_node = [
        add(u, 0, int(one.seconds * TICKS)) if again else -1
        for u, (one, again) in enumerate(zip(flow.units, ran, strict=True))
    ]
    a_node = {t: add(-1, flow.items[t].bytes, 0) for t in sorted(others)}
    for t in sorted(needed | others):
        makers = [r_node[u] for u in flow.makers[t]]
        if not makers or -1 in makers:
            continue
        made = makers[0] if len(makers) == 1 else add(-1, 0, 0)
        weights[made] -= flow.items[t].bytes
        if len(makers) > 1:
            implies[made] += makers
        if t in a_node:
            implies[made].append(a_node[t])
    for u, one in enumerate(flow.units):
        if r_node[u] >= 0:
            implies[r_node[u]] += [a_node[t] for t in one.reads if t in a_node and _last_version(flow, t, u)]
    return Row(
        room_bytes=room_bytes,
        needed_bytes=sum(flow.items[t].bytes for t in needed),
        unit=tuple(unit),
        weights_bytes=tuple(weights),
        ticks=tuple(ticks),
        implies=tuple(tuple(set(nodes)) for nodes in implies),
    )


def _last_version(flow: Dataflow, t: int, u: int) -> bool:
    return not flow.makers[t] or flow.makers[t][-1] < u
