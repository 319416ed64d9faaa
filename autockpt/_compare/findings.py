"""What replays of a plan have shown, by segment: which calls cannot be replayed, and what their replays need."""

from __future__ import annotations

import logging

from .._frames.around import Generator

_log = logging.getLogger("autockpt")


class Findings:
    """What is known of the replays of one plan.

    Args:
        governed: whether somebody makes another plan where this one is at fault, and says so.

    Attributes:
        refused: numbers of the segments that are kept, since a replay of them differed.
        needed_whole: numbers of the segments whose replays run what the plan skips too, since one came to need it.
        rehearsed: numbers of the segments of which one frame was compared whole.
        unrepeating: numbers of the segments that are not compared any more, since two replays of one frame differ.
    """

    def __init__(self, *, governed: bool) -> None:
        self.refused: set[int] = set()
        self.needed_whole: set[int] = set()
        self.rehearsed: set[int] = set()
        self.unrepeating: set[int] = set()
        self._governed = governed
        self._faults: dict[str, str] = {}  # calls that cannot be replayed, not told of yet
        self._drawn_from: dict[int, list[Generator]] = {}

    def drawn_from(self, segment: int) -> list[Generator]:
        """Return those besides the devices' own that a segment's calls were seen to draw from; more may be added."""
        return self._drawn_from.setdefault(segment, [])

    def does_not_repeat(self, segment: int, key: str) -> None:
        """Note that two replays of one frame differ: nothing can be told from a third."""
        if segment not in self.unrepeating:
            self.unrepeating.add(segment)
            _log.warning(
                "two replays of %s differ, so a kernel in it does not repeat itself, nor would a plain step. It is "
                "recomputed all the same, and not checked any more.",
                key,
            )

    @property
    def at_fault(self) -> bool:
        """Whether calls were found at fault since they were last taken, so that there will be another plan."""
        return bool(self._faults)

    def take_faults(self) -> dict[str, str]:
        """Return the calls that were found at fault since the last time, with the reasons."""
        faults, self._faults = self._faults, {}
        return faults

    def fault(self, segment: int, key: str, reason: str) -> None:
        """Keep a segment's calls from now on: its call `key` cannot be replayed. Whoever makes another plan says so."""
        self.refused.add(segment)
        if not self._governed and key not in self._faults:
            _log.warning(
                "%s is kept from now on, with its segment, since it %s. The plan may need more than it predicts.",
                key,
                reason,
            )
        self._faults.setdefault(key, reason)
