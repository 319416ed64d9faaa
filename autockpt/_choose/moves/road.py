"""A plan's copies, one after another in each direction, and how long the device waits for them.

device     │ pack a │ pack b │ ... │ end: a, b gone │ ............ │ fetch b, a │ ... │ read b │ read a │
out            └─ a ────┬─ b ────────┐ in time
back                                                                └─ b ──────────┬─ a ──────────────── late ┐
the device waits for a    ─┘
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..._data.offload import Offload
from ..._data.profile import Profile
from .clock import StepClock
from .ends import Ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """A storage that is copied to the host and back, in ticks of the plain step.

    Attributes:
        tensor: its number.
        bytes: its size.
        packed: when it is saved. Its copy may begin then.
        read: when it is read.
        release: when it is released after that.
    """

    tensor: int
    bytes: int
    packed: int
    read: int
    release: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The trips of one segment.

    Attributes:
        trips: in the order in which they begin.
        until: call at whose end all copies to the host are done. None if the device waits for each copy at once.
    """

    trips: tuple[Trip, ...]
    until: int | None = None


class Window(NamedTuple):
    """A span of time on the link in one direction.

    Attributes:
        most_bytes: what the link can copy in it.
        bytes: by number of a move, what the move has to copy in it.
    """

    most_bytes: int
    bytes: dict[int, int]


SHORT = 4
"""Windows of up to so many ends begin at every end. Longer ones double in length, and begin at each half of it."""

EVENTS = PACK, GONE, FETCH, READ, REPLAY = range(5)
"""The order of events at one tick."""


class Road:
    """The link of a recorded step.

    Args:
        profile: the step.
        offload: has the rates of the link.

    Attributes:
        ends: the calls that a move may wait for.
    """

    def __init__(self, profile: Profile, offload: Offload) -> None:
        self._clock, self._offload, self.ends = StepClock(profile), offload, Ends(profile)

    def fetched(self, move: Move, trip: Trip) -> int:
        """Tick at which a trip's way back begins."""
        return trip.read if move.until is None else min(self.ends.fetched[move.until], trip.read)

    def gone(self, move: Move, trip: Trip) -> int:
        """Tick from which a trip's storage is no longer on the device."""
        return trip.packed if move.until is None else max(self.ends.gone[move.until], trip.packed)

    def has_time(self, move: Move) -> bool:
        """Whether a move makes nobody wait if nothing else uses the link."""
        return bool(move.trips) and self.waiting_seconds([move], ()) <= 0.0

    def waiting_seconds(self, moves: Sequence[Move], replays: Iterable[tuple[int, float]]) -> float:
        """Return how long the device waits for a plan's copies. Each direction copies in the order of the requests.

        Exact for the recorded seconds; O(trips × log trips).

        Args:
            moves: what the plan moves.
            replays: tick and seconds of each replay. Copies go on during replays.
        """
        shift = waited = 0.0
        free = {PACK: 0.0, FETCH: 0.0}
        done: dict[tuple[int, int], float] = {}
        for tick, event, _, trip, amount in sorted(self._events(moves, replays)):
            now = self._clock.at(tick) + shift
            if event == REPLAY:
                shift += amount
            elif event in free:
                rate = self._offload.write_rate if event == PACK else self._offload.read_rate
                there = done.get((PACK, trip), 0.0) if event == FETCH else 0.0
                free[event] = done[event, trip] = max(free[event], now, there) + amount / rate
            else:
                late = max(done[PACK if event == GONE else FETCH, trip] - now, 0.0)
                shift, waited = shift + late, waited + late
        return waited

    def _events(
        self, moves: Sequence[Move], replays: Iterable[tuple[int, float]]
    ) -> Iterator[tuple[int, int, int, int, float]]:
        """Yield tick, event, order among events of its kind at the tick, number of the trip, and bytes or seconds."""
        pairs = sorted(((move, trip) for move in moves for trip in move.trips), key=lambda pair: pair[1].packed)
        for number, (move, trip) in enumerate(pairs):
            yield trip.packed, PACK, number, number, trip.bytes
            yield self.gone(move, trip), GONE, number, number, 0.0
            yield self.fetched(move, trip), FETCH, -number, number, trip.bytes
            yield trip.read, READ, number, number, 0.0
        for tick, seconds in replays:
            yield tick, REPLAY, 0, -1, seconds

    def windows(self, moves: Sequence[Move | None]) -> list[Window]:
        """Return the windows that some moves have to copy in. An entry of `moves` that is None moves nothing.

        That all windows suffice is necessary for no wait at all, and nearly sufficient. O(moves × windows around each).
        """
        rows = sorted({move.until for move in moves if move and move.until is not None}, key=self.ends.gone.__getitem__)
        numbers = {call: number for number, call in enumerate(rows)}
        gone, fetched = ([column[each] for each in rows] for column in (self.ends.gone, self.ends.fetched))
        passing: dict[tuple[bool, int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        back = [-tick for tick in fetched]  # ascending
        for number, move in enumerate(moves):
            if move is None or move.until is None:
                continue
            last = numbers[move.until]
            for trip in move.trips:
                firsts = (bisect.bisect_right(gone, trip.packed), bisect.bisect_left(back, -trip.read))
                for way, first in enumerate(firsts):
                    for begin, end in _around(min(first, last), last, len(rows)):
                        passing[bool(way), begin, end][number] += trip.bytes
        return [Window(self._most_bytes(key, gone, fetched), dict(own)) for key, own in passing.items()]

    def _most_bytes(self, key: tuple[bool, int, int], gone: Sequence[int], fetched: Sequence[int]) -> int:
        is_back, begin, end = key
        at = self._clock.at
        if is_back:
            until = at(fetched[begin - 1]) if begin else self._clock.at(1 << 31)
            return int((until - at(fetched[end])) * self._offload.read_rate)
        return int((at(gone[end]) - (at(gone[begin - 1]) if begin else 0.0)) * self._offload.write_rate)


def _around(first: int, last: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the windows that hold the ends `first` to `last`, of `count` in all; each as its own first and last end."""
    for begin in range(max(last - SHORT + 1, 0), first + 1):
        for end in range(last, min(begin + SHORT, count)):
            yield begin, end
    length = 2 * SHORT
    while length < 2 * count:
        half = length // 2
        for begin in range(max(-(-(last - length + 1) // half), 0) * half, first + 1, half):
            yield begin, min(begin + length, count) - 1
        length *= 2
