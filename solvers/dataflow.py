"""Selective recomputation as data: the units of a block in forward order, and the tensors between them.

In backward a unit is in one of three states, and what that costs is a matter of differences:

    recompute  R = 1   it runs again; what it reads must be available
    keep       R = 0   something that it made is held from forward on
    skip       R = 0   it neither runs again nor is held: nothing that is needed reads it

    x ─▶ [norm] ─▶ n ─▶ [fc] ─▶ u ─▶ [gelu] ─▶ g ─▶ [proj] ─▶ y        saved: x, n, u, g
          R          keep: u held   R: g again      skip                 held: x, u    (n and g come back)

With R per unit and A per tensor (available in backward), ``A − R of its maker`` says whether a tensor is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from .errors import InvalidProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One tensor (a storage) that units read or make; parameters are left out.

    Attributes:
        bytes: its size.
        saved: backward reads it.
        free: it is alive in backward in any case, so that holding it costs nothing.
        holdable: whether it can be held; False if it is overwritten after the block, or can be had only with one that
            is.
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
        makes: indices of items that it writes; what several units write (in place) they make together.
        keepable: whether it can be left out of a replay, and those of its results handed out that can be held.
        recomputable: whether it may run again.
        caller: number of the call whose own code calls it, where it is a torch function; -1 where it is a call.
    """

    name: str
    seconds: float
    reads: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    keepable: bool = True
    recomputable: bool = True
    caller: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeconds:
    """What a selective segment costs the host, whatever its units cost the device.

    Attributes:
        segment_seconds: once, if anything is recomputed.
        kept_unit_seconds: for each unit kept.
        seen_function_seconds: for each function that one call's own code calls, if some of them are kept or skipped and
            others run: only a function mode tells them apart.
    """

    segment_seconds: float = 0.0
    kept_unit_seconds: float = 0.0
    seen_function_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What follows from a choice of the units to recompute.

    Attributes:
        recompute: units that run again.
        keep: units that do not, and of which something is held.
        skip: the others.
        stop: one past the last recomputed unit: the replay ends there, and nothing behind it needs skipping.
        held: items held from forward on, boundary included.
        held_bytes: bytes of those that are not free.
        recompute_seconds: of the recomputed units, and of the host.
    """

    recompute: tuple[int, ...]
    keep: tuple[int, ...]
    skip: tuple[int, ...]
    stop: int
    held: tuple[int, ...]
    held_bytes: int
    recompute_seconds: float


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Units in forward order, and the items between them. An item that no unit makes comes from outside.

    Attributes:
        units: in forward order.
        items: in any order.

    Raises:
        InvalidProblem: an index, a size or a time makes no sense, an item is read before it is made, or what
            backward needs can neither be kept nor recomputed.

    Example:
        >>> from autockpt.solvers.dataflow import Dataflow, Item, Unit
        >>> flow = Dataflow(
        ...     units=(
        ...         Unit(name="fc", seconds=4.0, reads=(0,), makes=(1,)),
        ...         Unit(name="gelu", seconds=1.0, reads=(1,), makes=(2,)),
        ...     ),
        ...     items=(Item(bytes=2, saved=True), Item(bytes=8, saved=True), Item(bytes=8, saved=True)),
        ... )
        >>> flow.plain_bytes, flow.decisions([1]).held_bytes, flow.decisions([1]).keep
        (18, 10, (0,))
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
        for u in self.must_recompute:
            stuck = f"unit {self.units[u].name!r} makes what backward needs, and can neither be kept nor recomputed"
            _require(self.units[u].recomputable, stuck)

    @cached_property
    def makers(self) -> tuple[tuple[int, ...], ...]:
        """Per item, the units that make it, in forward order."""
        makers: list[list[int]] = [[] for _ in self.items]
        for u, unit in enumerate(self.units):
            for t in dict.fromkeys(unit.makes):
                makers[t].append(u)
        return tuple(tuple(each) for each in makers)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Per unit, the first unit of its group: units that make one item together share a decision."""
        group = list(range(len(self.units)))

        def first(u: int) -> int:
            while group[u] != u:
                u = group[u]
            return u

        for units in self.makers:
            for u in units[1:]:
                low, high = sorted((first(units[0]), first(u)))
                group[high] = low
        return tuple(first(u) for u in range(len(group)))

    @cached_property
    def holdable(self) -> tuple[bool, ...]:
        """Per item, whether it can be held."""
        return tuple(
            item.holdable and all(self.units[u].keepable for u in units)
            for item, units in zip(self.items, self.makers, strict=True)
        )

    @cached_property
    def must_recompute(self) -> frozenset[int]:
        """Units that run again wherever anything does: what backward needs of them cannot be held."""
        members: dict[int, list[int]] = {}
        for u, g in enumerate(self.groups):
            members.setdefault(g, []).append(u)
        found: set[int] = set()
        needed = [t for t, item in enumerate(self.items) if item.saved]
        while needed:
            t = needed.pop()
            if self.holdable[t] or self.makers[t][0] in found:
                continue
            groups = [self.groups[self.makers[t][0]]]
            for g in groups:
                for u in members[g]:
                    if u not in found:
                        found.add(u)
                        needed.extend(self.units[u].reads)
        return frozenset(found)

    @cached_property
    def functions(self) -> Counter[int]:
        """How many torch functions there are by caller."""
        return Counter(unit.caller for unit in self.units if unit.caller >= 0)

    @property
    def plain_bytes(self) -> int:
        """Bytes held where nothing is recomputed: all that is saved and not free."""
        return sum(item.bytes for item in self.items if item.saved and not item.free)

    def whole(self) -> tuple[int, ...]:
        """Units to recompute where as little as possible is kept: those up to the last that makes something saved."""
        members = [u for u, unit in enumerate(self.units) if any(self.items[t].saved for t in unit.makes)]
        last = max(members, default=-1)
        groups = {self.groups[u] for u in range(last + 1)} | {self.groups[u] for u in self.must_recompute}
        chosen = {u for u, unit in enumerate(self.units) if self.groups[u] in groups and unit.recomputable}
        while True:  # a group is recomputed whole or not at all, and what cannot be held must be recomputed
            wrong = {u for u in chosen if any(self._lacks(t, chosen) for t in self.units[u].reads)}
            left_out = {g for u, g in enumerate(self.groups) if u not in chosen or u in wrong}
            smaller = {u for u in chosen if self.groups[u] not in left_out}
            if smaller == chosen:
                return tuple(sorted(chosen))
            chosen = smaller

    def decisions(self, recompute: Collection[int], host: HostSeconds | None = None) -> Decisions:
        """What is kept, skipped and held if these units are recomputed, and what that costs; exact, O(units + items).

        Args:
            recompute: indices of units; whole groups.
            host: host seconds; None counts none.

        Returns:
            The decisions, with the fewest items held.

        Raises:
            InvalidProblem: the choice cannot be carried out.
        """
        again = frozenset(recompute)
        for u in again:
            _require(0 <= u < len(self.units), f"recomputes unit {u} of {len(self.units)}")
            _require(self.units[u].recomputable, f"unit {self.units[u].name!r} may not be recomputed")
        for u, g in enumerate(self.groups):
            name, other = self.units[u].name, self.units[g].name
            _require((u in again) == (g in again), f"units {name!r} and {other!r} write one tensor: both or neither")
        held = self.held(again)
        for t in held:
            # Where nothing is recomputed nothing is handed out either: autograd holds what it saved.
            _require(not again or self.holdable[t], f"item {t} would have to be held, and cannot be")
        holds = set(held)
        others = [u for u in range(len(self.units)) if u not in again]
        keep = tuple(u for u in others if not holds.isdisjoint(self.units[u].makes))
        skip = tuple(u for u in others if holds.isdisjoint(self.units[u].makes))
        stop = max(again, default=-1) + 1
        return Decisions(
            recompute=tuple(sorted(again)),
            keep=keep,
            skip=skip,
            stop=stop,
            held=held,
            held_bytes=sum(self.items[t].bytes for t in held if not self.items[t].free),
            recompute_seconds=self._seconds(sorted(again), keep, skip, stop, host or HostSeconds()),
        )

    def held(self, again: Collection[int]) -> tuple[int, ...]:
        """Items held if the units `again` are recomputed: saved or read by them, and not made by them."""
        needed = {t for t, item in enumerate(self.items) if item.saved}
        needed.update(t for u in again for t in self.units[u].reads)
        needed.difference_update(t for u in again for t in self.units[u].makes)
        return tuple(sorted(needed))

    def _lacks(self, t: int, chosen: Collection[int]) -> bool:
        return not self.holdable[t] and not set(self.makers[t]) <= set(chosen)

    def _seconds(
        self, again: Sequence[int], keep: Sequence[int], skip: Sequence[int], stop: int, host: HostSeconds
    ) -> float:
        if not again:
            return 0.0
        seconds = sum(self.units[u].seconds for u in again)
        seconds += host.segment_seconds + host.kept_unit_seconds * len(keep)
        idle = Counter(self.units[u].caller for u in (*keep, *(u for u in skip if u < stop)))
        seen = sum(every for caller, every in self.functions.items() if 0 < idle[caller] < every)
        return seconds + host.seen_function_seconds * seen


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidProblem(message)
