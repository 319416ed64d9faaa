"""Candidates below one level: runs in parts, and calls of which what is inside is recomputed again.

of a call     children  a b c d     inner  [a]  [b]  [a b]  [a][b]  ...: the one of the lowest peak, for all calls alike
of a row      the `offers` of runs in parts; each again with what is lowest inside its calls
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ..._cuts.offers import offers
from ..._index.profile_index import Index, Members
from ..._replays.effects import PlannedReplay, replay_of
from ..._replays.parts import Cuts, Inner, Inners, Known, in_parts
from ...solvers.deadline import Deadline
from .runs import rows_of

MOST_CHILDREN = 12
"""Of a call with more nothing inside is looked at: runs in parts do for rows of calls."""

SPEAKS = ("c10d.", "_c10d_functional.")
"""How the names of operators begin that run on all ranks together."""


def replays_in_parts(index: Index, deadline: Deadline) -> Iterator[PlannedReplay]:
    """Yield runs of siblings in parts of one call that saves something, with the functions before it; see `offers`.

    None where a backward keeps its graph, for which all is replayed at once, or where replays run collectives.
    """
    if any(index.passes.keeping) or any(name.startswith(SPEAKS) for name in index.profile.ops.name):
        return
    insides = Insides(index, deadline)
    for row in rows_of(index):
        yield from insides.of_calls(row)
        for groups in _stretches(index, row):
            for first, stop, levels in offers(len(groups)):
                if deadline.passed:
                    return
                run = groups[first:stop]
                members = tuple(node for group in run for node in group)
                each = (
                    level if i == 0 else 0 for group, level in zip(run, levels, strict=True) for i in range(len(group))
                )
                yield from insides.both(members, tuple(each))


def _stretches(index: Index, row: Sequence[int]) -> Iterator[list[Members]]:
    """Yield groups of siblings side by side, of which each can be replayed by itself and saves what backward reads."""
    groups: list[Members] = []
    begun: Members = ()
    for node in row:
        begun = (*begun, node)
        if node in index.refused or node in index.lonely:
            yield groups
            groups, begun = [], ()
        elif index.is_function(node) or not index.saves_of((node,)):
            continue
        elif index.reason(begun):  # it changes in place what the group before returned
            merged = (*groups.pop(), *begun) if groups else ()
            if merged and not index.reason(merged):
                groups.append(merged)
            else:
                yield groups
                groups = []
            begun = ()
        elif replay_of(index, begun) is not None:
            groups.append(begun)
            begun = ()
    yield groups


class Insides:
    """What is recomputed inside calls so that their replays stay lowest.

    Args:
        index: of the profile.
        deadline: once it has passed nothing further is looked at.
    """

    def __init__(self, index: Index, deadline: Deadline) -> None:
        self._index, self._deadline = index, deadline
        self._known: Known = {}
        self._lowest: dict[tuple[str, tuple[int, ...]], Inners] = {}  # as if the first node of the call were 0

    def of_calls(self, row: Sequence[int]) -> Iterator[PlannedReplay]:
        """Yield the siblings of which something inside is worth to be recomputed again, each by itself."""
        for call in row:
            if not (self._deadline.passed or self._index.is_function(call) or self._index.reason((call,))):
                yield from itertools.islice(self.both((call,), (0,)), 1, None)

    def both(self, members: Members, cuts: Cuts) -> Iterator[PlannedReplay]:
        """Yield a run in parts, and the same with what is lowest inside its calls, where that is lower."""
        replay = in_parts(self._index, members, cuts, (), self._known)
        if replay is None:
            return
        yield replay
        inner = tuple(each for member in members for each in self._inside(member))
        lower = in_parts(self._index, members, cuts, inner, self._known) if inner else None
        if lower is not None and _high_bytes(lower) < _high_bytes(replay):
            yield lower

    def _inside(self, call: int) -> Inners:
        """Return what is recomputed inside a call so that its replay stays lowest: of calls alike the same."""
        index, node = self._index, self._index.nodes[call]
        if index.is_function(call):
            return ()
        inside = tuple(n - call for n in range(call, node.stop) if not index.is_function(n))
        key = node.record.signature, inside
        if key not in self._lowest and not self._deadline.passed:
            self._lowest[key] = tuple(_moved(each, -call) for each in self._search(call))
        found = tuple(_moved(each, call) for each in self._lowest.get(key, ()))
        return found if all(_is_able(index, each) for each in found) else ()

    def _search(self, call: int) -> Inners:
        index = self._index
        row = [child for child in index.children[call] if not index.is_function(child)]
        whole = replay_of(index, (call,))
        outside = not all(is_inside(index, child, call) for child in row)
        if not row or outside or len(row) > MOST_CHILDREN or whole is None:
            return ()
        deeper = {child: self._inside(child) for child in row}
        best: Inners = ()
        least = _high_bytes(whole), 0.0
        for runs in _choices(row):
            own = (child for child in row if not any(child in run for run in runs))
            inner = tuple(
                sorted(
                    [
                        *(Inner(run, (0,) * len(run), tuple(n for m in run for n in deeper[m])) for run in runs),
                        *(each for child in own for each in deeper[child]),
                    ]
                )
            )
            if not inner or not all(_is_able(index, each) for each in inner):
                continue
            found = in_parts(index, (call,), (0,), inner, self._known)
            if found is not None and (worth := (_high_bytes(found), found.segment.recompute_seconds)) < least:
                best, least = inner, worth
        return best


def is_inside(index: Index, child: int, call: int) -> bool:
    """Whether a call is one of a module that lies in the module of the call around it, by its name."""
    return index.nodes[child].record.name.startswith(f"{index.nodes[call].record.name}.")


def _choices(row: Sequence[int]) -> Iterator[tuple[Members, ...]]:
    """Which siblings have replays of their own: none of them, a run, or each of the first ones by itself."""
    yield ()
    for stop in range(1, len(row) + 1):
        yield from ((tuple(row[first:stop]),) for first in range(stop))
        if stop > 1:
            yield tuple((child,) for child in row[:stop])


def _moved(inner: Inner, by: int) -> Inner:
    """Return the same inside a call that begins so many nodes later."""
    members = tuple(member + by for member in inner.members)
    return Inner(members, inner.cuts, tuple(_moved(each, by) for each in inner.inner))


def _is_able(index: Index, inner: Inner) -> bool:
    """Whether all of it can be replayed by itself, and restores something."""
    may = not index.reason(inner.members) and bool(index.saves_of(inner.members))
    return may and all(_is_able(index, each) for each in inner.inner)


def _high_bytes(replay: PlannedReplay) -> int:
    """Highest level of what stands because of a replay."""
    changes = sorted(
        change for size, since, until in replay.additions for change in ((since, size), (until, -size)) if since < until
    )
    level = high = 0
    for number, (tick, change) in enumerate(changes):
        level += change
        if number + 1 == len(changes) or changes[number + 1][0] > tick:
            high = max(high, level)
    return high
