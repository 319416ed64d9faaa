"""Ranks that wait for each other in a circle because their groups overlap: no round of theirs gets all its ranks.

    rank 0   waits for 1 where 0, 1, 2 agree ─┐     a part of the model is shared by 0 and 1, another one by 0 and 2
    rank 1   waits for 0 where 0, 1, 3 agree ─┘     and rank 1 has the first with 0, and the other with 3

A rank that waits for more than a moment publishes where it waits. If a circle lasts, all ranks that wait in it are
told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

CIRCLE = (
    "{0}: process groups that overlap, and no order in which all of them could agree on a plan, so none is made. Share "
    "the whole model over one group, or over the dimensions of one mesh (init_device_mesh); or give every rank a plan "
    "by hand, apply(model, plan=Plan.of([...]))."
)


class Round(NamedTuple):
    """A round of a group, where a rank waits; `begin` is the prefix of its keys in the store."""

    begin: str
    members: tuple[int, ...]

    def absent(self, store: Any) -> list[int]:
        """Return the ranks that have not come."""
        return [rank for rank in self.members if not store.check([f"{self.begin}/{rank}"])]


Circle = tuple[tuple[int, Round], ...]
"""Ranks, and where each waits for the next one of them; the last one waits for the first."""


@contextmanager
def waiting(store: Any, own: int, place: Round) -> Iterator[None]:
    """Publish, inside the block, the round in which this rank waits."""
    store.set(_key(own), msgspec.json.encode(place))
    try:
        yield
    finally:
        store.set(_key(own), "null")


def circle_of(store: Any, own: int) -> Circle:
    """Return the ranks that wait in a circle with this one; empty if there is none."""
    return _followed(store, own, ())


def _followed(store: Any, rank: int, before: Circle) -> Circle:
    """Return the circle that begins with the ranks `before` and goes on with `rank`; empty if there is none."""
    said = msgspec.json.decode(store.get(_key(rank)), type=Round | None) if store.check([_key(rank)]) else None
    if said is None:
        return ()
    here = (*before, (rank, said))
    for absent in said.absent(store):
        if absent == here[0][0]:
            return here
        if all(absent != each for each, _ in here) and (found := _followed(store, absent, here)):
            return found
    return ()


def words_of(circle: Circle) -> str:
    """Return what is raised on all ranks that wait in a circle, the same on each."""
    first = min(range(len(circle)), key=lambda number: circle[number][0])
    turned = (*circle[first:], *circle[:first])
    behind = (*turned[1:], turned[0])
    told = [
        f"rank {rank} waits for rank {other} where ranks {', '.join(map(str, place.members))} agree"
        for (rank, place), (other, _) in zip(turned, behind, strict=True)
    ]
    return CIRCLE.format(", and ".join(told))


def _key(rank: int) -> str:
    return f"autockpt/waits/{rank}"
