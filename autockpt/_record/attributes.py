"""What a replay needs of the tensors that a call finds at attributes of its modules, and what it never reads.

step 1   self.last = a           a stands until it is overwritten
step 2   ...; self.last = b      a replay of this call finds a at the attribute, so a is held for it, unless forward
                                 reads nothing of a
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

from .._watch.lifetimes import Lifetimes
from .flow import Flow


@dataclass(frozen=True, slots=True)
class AtAttributes:
    """What one call finds at attributes of its modules.

    Attributes:
        needed: tensors of the step that a replay of the call needs there.
        unread: qualified names of attributes of which it needs nothing.
    """

    needed: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()


def at_attributes(flow: Flow, found: Lifetimes) -> list[AtAttributes]:
    """Say by call what a replay needs. An attribute that any call reads is read; so is one with anything that stays."""
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
