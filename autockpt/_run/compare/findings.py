"""What replays of a plan have shown, by segment: which calls cannot be replayed, and what other replays need."""

from __future__ import annotations

import logging
import weakref
from typing import NamedTuple

from torch import Tensor

from ..._calls.found.around import Generator
from .verdicts import Verdicts

_log = logging.getLogger("autockpt")


class Told(NamedTuple):
    """How it is said that a call is kept.

    Attributes:
        kept: that it is, with two gaps: for its name and the reason.
        remedy: what becomes of it after an error; with a gap for its name.
    """

    kept: str
    remedy: str


PLANNED = Told(
    "%s is kept from now on, with its segment, since it %s. The plan may need more than it predicts.",
    "The call is kept from the next forward on; keep={!r} keeps it from the first.",
)


class Findings:
    """What is known of the replays of one plan.

    Args:
        governed: whether a governor makes another plan if a call cannot be replayed, and warns the user.
        told: how it is said that a call is kept.

    Attributes:
        told: as given.
        refused: numbers of the segments that are kept, since a replay failed or differed.
        needed_whole: numbers of the segments whose replays also run what the plan skips, since one replay needed it.
        rehearsed: numbers of the segments that have had their rehearsal.
        looked_again: numbers of those of which a second replay was looked at.
        unrepeating: numbers of the segments that are no longer compared, since two replays of one frame differed.
        hooks_keep: by number of a segment whose forward hooks keep something that a replay changed: the tensors that
            they wrote.
        verdicts: what devices will have found.
    """

    def __init__(self, *, governed: bool, told: Told = PLANNED) -> None:
        self.told = told
        self.refused: set[int] = set()
        self.needed_whole: set[int] = set()
        self.rehearsed: set[int] = set()
        self.looked_again: set[int] = set()
        self.unrepeating: set[int] = set()
        self.hooks_keep: dict[int, list[weakref.ref[Tensor]]] = {}
        self.verdicts = Verdicts()
        self._governed = governed
        self._faults: dict[str, str] = {}  # calls that cannot be replayed, not taken yet
        self._drawn_from: dict[int, list[Generator]] = {}

    def hooks_wrote(self, segment: int, written: list[Tensor] | None) -> None:
        """Note that hooks keep something, and which tensors they wrote: later replays put it back. None: nothing."""
        if written is not None:
            self.hooks_keep.setdefault(segment, []).extend(map(weakref.ref, written))

    def drawn_from(self, segment: int) -> list[Generator]:
        """Return the generators, besides the devices' own, that a segment's calls drew from; a list to add more to."""
        return self._drawn_from.setdefault(segment, [])

    def does_not_repeat(self, segment: int, key: str) -> None:
        """Note that two replays of one frame differ, so comparing further ones would show nothing."""
        if segment not in self.unrepeating:
            self.unrepeating.add(segment)
            _log.warning(
                "two replays of %s differ: a kernel in it is not deterministic, so a plain step would not repeat "
                "either. The call is still recomputed, and no longer checked.",
                key,
            )

    @property
    def at_fault(self) -> bool:
        """Whether there are calls that `take_faults` has not returned yet: another plan will be made."""
        return bool(self._faults)

    def take_faults(self) -> dict[str, str]:
        """Return the calls that were found not replayable since the last time, with the reasons."""
        faults, self._faults = self._faults, {}
        return faults

    def fault(self, segment: int, key: str, reason: str) -> None:
        """Keep a segment's calls from now on: its call `key` cannot be replayed. Warns, unless a governor will."""
        self.refused.add(segment)
        if not self._governed and key not in self._faults:
            _log.warning(self.told.kept, key, reason)
        self._faults.setdefault(key, reason)
