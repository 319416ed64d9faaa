"""Candidates with nested replays: runs that are replayed in parts, and calls with inner replays.

A call inside a segment has an inner replay if the segment's replay leaves it to a later replay of its own.

a call        children a b c d     inner [a]  [b]  [a b]  [a][b]  ...: those of lowest peak; equal calls have the same
a row         its runs in parts, as `cut_runs` has them; each also with the inner replays of its calls
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from ...solvers.deadline import Deadline
from ..cuts.cut_runs import cut_runs
from ..index.profile_index import Index, Members
from ..replay_cost.effects import PlannedReplay, replay_of
from ..replay_cost.parts import Cuts, Inner, Inners, Known, in_parts
from .runs import rows_of

MOST_CHILDREN = 12
"""A call with more children gets no inner replays: for rows of calls, runs in parts suffice."""

COLLECTIVES = ("c10d.", "_c10d_functional.")
"""Prefixes of the names of operators that run collectives."""


def replays_in_parts(index: Index, deadline: Deadline) -> Iterator[PlannedReplay]:
    """Yield calls with inner replays, and runs of siblings that are replayed in parts; see `cut_runs`.

    The smallest part is one call that saves something, with the functions before it. Yield nothing if a backward keeps
    its graph, since everything is then replayed at once, or if operators run collectives.
    """
    if any(index.passes.keeping) or any(name.startswith(COLLECTIVES) for name in index.profile.ops.name):
        return
    insides = Insides(index, deadline)
    for row in rows_of(index):
        yield from insides.of_calls(row)
        for groups in _stretches(index, row):
            for first, stop, levels in cut_runs(len(groups)):
                if deadline.passed:
                    return
                run = groups[first:stop]
                members = tuple(node for group in run for node in group)
                each = (
                    level if i == 0 else 0 for group, level in zip(run, levels, strict=True) for i in range(len(group))
                )
                yield from insides.both(members, tuple(each))


def _stretches(index: Index, row: Sequence[int]) -> Iterator[list[Members]]:
    """Yield lists of adjacent groups. Each group can be replayed by itself, and saves something that backward reads."""
    groups: list[Members] = []
    begun: Members = ()
    for node in row:
        begun = (*begun, node)
        if node in index.refused or node in index.lonely:  # units too: each level would gather again
            yield groups
            groups, begun = [], ()
        elif index.is_function(node) or not index.saves_of((node,)):
            continue
        elif index.reason(begun):  # the group changes in place what the group before it returned
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
    """Finds the inner replays of calls that give the lowest peak.

    Args:
        index: the profile's index.
        deadline: the search stops once it has passed.
    """

    def __init__(self, index: Index, deadline: Deadline) -> None:
        self._index, self._deadline = index, deadline
        self._known: Known = {}
        self._lowest: dict[tuple[str, tuple[int, ...]], Inners] = {}  # nodes are relative to the first node of the call

    def of_calls(self, row: Sequence[int]) -> Iterator[PlannedReplay]:
        """Yield each sibling by itself, with inner replays, if these lower its peak."""
        for call in row:
            if not (self._deadline.passed or self._index.is_function(call) or self._index.reason((call,))):
                yield from itertools.islice(self.both((call,), (0,)), 1, None)

    def both(self, members: Members, cuts: Cuts) -> Iterator[PlannedReplay]:
        """Yield a run in parts, and the same run with inner replays if its peak is lower with them."""
        replay = in_parts(self._index, members, cuts, (), self._known)
        if replay is None:
            return
        yield replay
        inner = tuple(each for member in members for each in self._inside(member))
        lower = in_parts(self._index, members, cuts, inner, self._known) if inner else None
        if lower is not None and _high_bytes(lower) < _high_bytes(replay):
            yield lower

    def _inside(self, call: int) -> Inners:
        """Return the inner replays that give a call the lowest peak; equal calls have the same ones."""
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
            inner = _replays(row, runs, deeper)
            if not inner or not all(_is_able(index, each) for each in inner):
                continue
            found = in_parts(index, (call,), (0,), inner, self._known)
            if found is not None and (worth := (_high_bytes(found), found.segment.recompute_seconds)) < least:
                best, least = inner, worth
        return best


def _replays(row: Sequence[int], runs: Sequence[Members], deeper: Mapping[int, Inners]) -> Inners:
    """Return the inner replays of siblings: one of each run, and of all others those inside them (`deeper`)."""
    own = (child for child in row if not any(child in run for run in runs))
    of_runs = (Inner(run, (0,) * len(run), tuple(n for m in run for n in deeper[m])) for run in runs)
    return tuple(sorted([*of_runs, *(each for child in own for each in deeper[child])]))


def is_inside(index: Index, child: int, call: int) -> bool:
    """Whether the module of a child lies inside the module of the call around it, by its name."""
    return index.nodes[child].record.name.startswith(f"{index.nodes[call].record.name}.")


def _choices(row: Sequence[int]) -> Iterator[tuple[Members, ...]]:
    """Yield choices of siblings with inner replays: none, one run of them, or each of the first few by itself."""
    yield ()
    for stop in range(1, len(row) + 1):
        yield from ((tuple(row[first:stop]),) for first in range(stop))
        if stop > 1:
            yield tuple((child,) for child in row[:stop])


def _moved(inner: Inner, by: int) -> Inner:
    """Return the same inner replay for a call that begins `by` nodes later."""
    members = tuple(member + by for member in inner.members)
    return Inner(members, inner.cuts, tuple(_moved(each, by) for each in inner.inner))


def _is_able(index: Index, inner: Inner) -> bool:
    """Whether an inner replay, and each one inside it, can run by itself and restores something."""
    may = not index.reason(inner.members) and bool(index.saves_of(inner.members))
    return may and all(_is_able(index, each) for each in inner.inner)


def _high_bytes(replay: PlannedReplay) -> int:
    """Peak of the bytes that are allocated because of a replay."""
    changes = sorted(
        change for size, since, until in replay.additions for change in ((since, size), (until, -size)) if since < until
    )
    level = high = 0
    for number, (tick, change) in enumerate(changes):
        level += change
        if number + 1 == len(changes) or changes[number + 1][0] > tick:
            high = max(high, level)
    return high
