"""Selective recomputation as data: the units of a block in forward order, and the tensors between them.

In backward a unit is in one of three states:

    recompute  R = 1   it runs again; what it reads must be available
    keep       R = 0   something that it made is held from forward on
    skip       R = 0   it neither runs again nor is held: nothing that is needed reads it

    x ─▶ [norm] ─▶ n ─▶ [fc] ─▶ u ─▶ [gelu] ─▶ g ─▶ [proj] ─▶ y        saved: x, n, u, g
          R          keep: u held   R: g again      skip                 held: x, u    (n and g are made again)

With R per unit and A per tensor (available in backward), ``A − R of its maker`` says whether a tensor is held.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from ...solvers.errors import InvalidProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One tensor (a storage) that units read or make; parameters are left out.

    Attributes:
        bytes: its size.
        saved: backward reads it.
        free: it is alive in backward in any case, so that holding it costs nothing.
        holdable: whether it can be held; False if it is overwritten after the block, or if its unit can only return
            it together with an item that is.
    """

    bytes: int
    saved: bool = False
    free: bool = False
    holdable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A call of a module or function, or an op: what is recomputed, kept or skipped as a whole.

    Attributes:
        name: for people.
        seconds: of its forward.
        reads: indices of items.
        makes: indices of items that it writes. Units that write one item (in place) make it together.
        keepable: whether a replay can leave it out, and return those of its results that can be held in its place.
    """

    name: str
    seconds: float
    reads: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    keepable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What follows from a choice of the units to recompute.

    Attributes:
        recompute: units that run again.
        held_bytes: bytes held from forward on, boundary included; free items are left out.
        recompute_seconds: of the recomputed units, and of the host for those that are kept.
    """

    recompute: tuple[int, ...]
    held_bytes: int
    recompute_seconds: float


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Units in forward order, and the items between them. An item that no unit makes comes from outside.

    Attributes:
        units: in forward order.
        items: in any order.

    Raises:
        InvalidProblem: an index, a size or a time makes no sense, or an item is read before it is made.

    Example:
        >>> from autockpt.solvers import Dataflow, Item, Unit
        >>> flow = Dataflow(
        ...     units=(
        ...         Unit(name="fc", seconds=4.0, reads=(0,), makes=(1,)),
        ...         Unit(name="gelu", seconds=1.0, reads=(1,), makes=(2,)),
        ...     ),
        ...     items=(Item(bytes=2, saved=True), Item(bytes=8, saved=True), Item(bytes=8, saved=True)),
        ... )
        >>> flow.plain_bytes, flow.decisions([1]).held_bytes
        (18, 10)
    """

    units: tuple[Unit, ...]
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        for i, item in enumerate(self.items):
            _require(item.bytes >= 0, f"item {i} has negative bytes {item.bytes}")
        for u, unit in enumerate(self.units):
            where = f"unit {unit.name!r}"
            _require(0.0 <= unit.seconds < float("inf"), f"{where} costs {unit.seconds} seconds")
            for t in (*unit.reads, *unit.makes):
                _require(0 <= t < len(self.items), f"{where} reads or makes item {t} of {len(self.items)}")
            for t in unit.reads:
                made = not self.makers[t] or self.makers[t][0] < u
                _require(made, f"{where} reads item {t} before it is made")

    @cached_property
    def makers(self) -> tuple[tuple[int, ...], ...]:
        """Per item, the units that make it, in forward order."""
        makers: list[list[int]] = [[] for _ in self.items]
        for u, unit in enumerate(self.units):
            for t in dict.fromkeys(unit.makes):
                makers[t].append(u)
        return tuple(tuple(each) for each in makers)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Per unit, the units that share its decision: those that make one item together."""
        group = [[u] for u in range(len(self.units))]
        for makers in self.makers:
            for u in makers[1:]:
                first, other = group[makers[0]], group[u]
                if first is not other:
                    first += other
                    for v in other:
                        group[v] = first
        return tuple(tuple(sorted(each)) for each in group)

    @cached_property
    def holdable(self) -> tuple[bool, ...]:
        """Per item, whether it can be held."""
        return tuple(
            item.holdable and all(self.units[u].keepable for u in units)
            for item, units in zip(self.items, self.makers, strict=True)
        )

    @property
    def plain_bytes(self) -> int:
        """Bytes held if nothing is recomputed: those of all items that are saved and not free."""
        return sum(item.bytes for item in self.items if item.saved and not item.free)

    def decisions(self, recompute: Collection[int], *, kept_seconds: float = 0.0) -> Decisions:
        """Say what is held if these units are recomputed, and what that costs; exact, O(units + items).

        Args:
            recompute: indices of units; of each group all or none.
            kept_seconds: what each kept unit costs the host if anything is recomputed.

        Returns:
            The decisions, with the fewest items held.

        Raises:
            InvalidProblem: the choice cannot be carried out.
        """
        again = frozenset(recompute)
        for u in again:
            _require(0 <= u < len(self.units), f"recomputes unit {u} of {len(self.units)}")
        for u, group in enumerate(self.groups):
            name, other = self.units[u].name, self.units[group[0]].name
            _require(
                (u in again) == (group[0] in again), f"units {name!r} and {other!r} write one tensor: both or neither"
            )
        held = self.held(again)
        for t in held:
            # If nothing is recomputed, no replay has to return the item: autograd itself holds what it saved.
            _require(not again or self.holdable[t], f"item {t} would have to be held, and cannot be")
        kept = [u for u, unit in enumerate(self.units) if u not in again and not set(held).isdisjoint(unit.makes)]
        seconds = sum(self.units[u].seconds for u in sorted(again)) + kept_seconds * len(kept)
        return Decisions(
            recompute=tuple(sorted(again)),
            held_bytes=sum(self.items[t].bytes for t in held if not self.items[t].free),
            recompute_seconds=seconds if again else 0.0,
        )

    def held(self, again: Collection[int]) -> tuple[int, ...]:
        """Items held if the units `again` are recomputed: saved or read by them, and not made by them."""
        needed = {t for t, item in enumerate(self.items) if item.saved}
        needed.update(t for u in again for t in self.units[u].reads)
        needed.difference_update(t for u in again for t in self.units[u].makes)
        return tuple(sorted(needed))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidProblem(message)
