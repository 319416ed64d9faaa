"""Which tensors at attributes of its modules a replay of a call needs, and which attributes are never read.

call 1   self.last = a           the attribute keeps a alive until it is overwritten
call 2   ...; self.last = b      a replay of call 2 may read a at the attribute, so a is held for it, unless no call
                                 reads that attribute
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from .flow import Flow
from .lifetimes import Lifetimes


@dataclass(frozen=True, slots=True)
class AtAttributes:
    """What one call finds at attributes of its modules.

    Attributes:
        needed: tensors of the step that a replay of the call needs there.
        unread: qualified names of the attributes that no call reads.
    """

    needed: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()


def at_attributes(flow: Flow, found: Lifetimes) -> list[AtAttributes]:
    """Say for each call what a replay needs.

    An attribute counts as read if this holds for any call that finds it: the call reads or saves one of its tensors,
    returns one, or one is older than the step.
    """
    if not any(flow.found):
        return [AtAttributes() for _ in flow.calls]
    ticks, names, read = _read_at(flow, found), [_by_name(flow, call) for call in range(len(flow.calls))], set[str]()
    for span, own in zip(flow.calls, names, strict=True):
        returned = set(span.last.storages)
        for name, storages in own.items():
            first = ((each, bisect_left(ticks[each], span.first.tick)) for each in storages)
            inside = any(i < len(ticks[each]) and ticks[each][i] < span.last.tick for each, i in first)
            if inside or min(storages) < 0 or not returned.isdisjoint(storages):
                read.add(name)
    return [
        AtAttributes(
            needed=tuple(dict.fromkeys(each for name in own if name in read for each in own[name] if each >= 0)),
            unread=tuple(name for name in own if name not in read),
        )
        for own in names
    ]


def _by_name(flow: Flow, call: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for each, storage in flow.found[call]:
        found[each.name].append(storage)
    return found


def _read_at(flow: Flow, found: Lifetimes) -> dict[int, list[int]]:
    """Return the ticks at which operators read each storage, or autograd saved it; in ascending order."""
    ticks: dict[int, list[int]] = defaultdict(list)
    reads = [*(span.first for span in flow.ops), *found.of_kind("pack")]
    for each in sorted(reads, key=lambda each: each.tick):
        for storage in each.storages:
            ticks[storage].append(each.tick)
    return ticks
