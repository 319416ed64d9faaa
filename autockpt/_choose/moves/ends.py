"""Calls at whose end a tensor may have left the device, and the tick at which its way back then begins.

    h.3            packs a                              reads a
    h.4, h.5       │ end of h.5: a is gone ... ╎ backward of h.5 begins: a is fetched │

A call inside a recomputed segment cannot be such an end. So a call's tensors wait for the calls around it, for its
later siblings, or for theirs. No segment can lie around one of these and not around the call itself.
"""

from __future__ import annotations

import bisect

from ..._data.profile import Profile

LONG = 1 / 16
"""Calls make a row of ends. One that takes at least this share of forward is replaced in it by the calls inside it."""


class Ends:
    """The calls of a recorded step as ends of moves.

    Args:
        profile: the recorded step.

    Attributes:
        gone: by call, the tick at which it ends in forward.
        fetched: by call, the tick of the last read or release before its backward begins, or the end of forward if that
            is later. 0 for a call without reads in backward.
    """

    def __init__(self, profile: Profile) -> None:
        calls, saves, ticks = profile.calls, profile.saves, profile.ticks
        self._calls = calls
        self.gone = [call.exit for call in calls]
        first = [ticks] * len(calls)
        events = sorted({tick for tick in (*saves.unpack, *saves.release) if tick < ticks})
        for saver, unpack in zip(saves.call, saves.unpack, strict=True):
            first[saver] = min(first[saver], unpack)
        for i in range(len(calls) - 1, 0, -1):
            first[calls[i].parent] = min(first[calls[i].parent], first[i])
        own = self._own_releases(profile)
        self._reads = [tick < ticks for tick in first]
        self.fetched = []
        for i, tick in enumerate(first):
            place = bisect.bisect_left(events, tick) - 1
            while place >= 0 and i in own.get(events[place], ()):
                place -= 1
            self.fetched.append(max(events[place] if place >= 0 else 0, profile.forward_ticks) if tick < ticks else 0)
        children: list[list[int]] = [[] for _ in calls]
        for i, call in enumerate(calls[1:], 1):
            children[call.parent].append(i)
        self._children = children
        self._row = set(self._split(0, LONG * calls[0].forward_seconds))

    @staticmethod
    def _own_releases(profile: Profile) -> dict[int, set[int]]:
        """Return, by tick, the calls that then release a save which no backward reads: as their backward begins."""
        found: dict[int, set[int]] = {}
        saves = profile.saves
        for call, unpack, release in zip(saves.call, saves.unpack, saves.release, strict=True):
            if unpack >= profile.ticks:
                around = call
                while around >= 0:
                    found.setdefault(release, set()).add(around)
                    around = profile.calls[around].parent
        return found

    def _split(self, call: int, long_seconds: float) -> list[int]:
        inside = [child for child in self._children[call] if self._reads[child]]
        if self._calls[call].forward_seconds < long_seconds or len(inside) < 2:
            return [call] if len(inside) != 1 else self._split(inside[0], long_seconds)
        return [each for child in inside for each in self._split(child, long_seconds)]

    def of(self, call: int) -> list[int]:
        """Return the calls at whose end tensors of `call` may have left the device, in the order of their ends.

        These are the calls around `call`, and the later siblings of `call` and of the calls around it. Only calls of
        the row (see `LONG`), and calls that contain one of the row, are returned.
        """
        found, around = set[int](), call
        while around > 0:
            if around != call and self._reads[around]:
                found.add(around)
            siblings = self._children[self._calls[around].parent]
            found.update(each for each in siblings if each > around and self._reads[each])
            around = self._calls[around].parent
        kept = self._row.union(each for each in found if any(row in self._row for row in self._inside(each)))
        return sorted((each for each in found if each in kept), key=lambda each: self.gone[each])

    def _inside(self, call: int) -> range:
        return range(call, self._calls[call].stop)
