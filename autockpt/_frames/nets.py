"""What is compared of the replays of a plan, and what follows where they differ.

a segment's first frame    rehearsed: what it drops is spilled too, and backward gets that where the replay differs
later ones                 one segment a step, in turn: the replay's checksums must be those of forward
found to differ            the segment's calls are kept from then on; who made the plan is told to make another
"""

from __future__ import annotations

import functools
import logging
import weakref
from typing import Literal, TypeAlias

import torch

from .._data.plan import Plan
from .._stash.base import NoRoom, Spill
from .._stash.held import HeldStashes
from .around import Generator
from .trial import Rehearsal, Trial

_log = logging.getLogger("autockpt")

Checking: TypeAlias = Literal["sampled", "always", "never"]

LEAST_PERIOD = 16
"""Steps in which every segment is checked once, where there are no more segments than that."""


class Nets:
    """What is compared of the replays of one plan.

    Args:
        always: whether all segments are checked in every step, or else one.
        n_segments: of the plan.
        governed: whether somebody makes another plan where this one is at fault.
        stashes: opens stashes for rehearsals; None where nobody holds any.

    Attributes:
        refused: numbers of the segments that are kept, since a replay of them differed.
        needed_whole: numbers of the segments whose replays run what the plan skips too, since one came to need it.
    """

    def __init__(self, n_segments: int, *, always: bool, governed: bool, stashes: HeldStashes | None = None) -> None:
        self.refused: set[int] = set()
        self.needed_whole: set[int] = set()
        self._faults: dict[str, str] = {}  # calls that cannot be replayed, not told of yet
        self._drawn_from: dict[int, list[Generator]] = {}
        self._n_segments, self._always, self._governed = n_segments, always, governed
        self._unrehearsed = set(range(n_segments))
        self._unrepeating: set[int] = set()
        self._turn = 0
        self._told_no_room = False
        self._stashes = stashes or HeldStashes()
        self._spills: dict[str, weakref.ref[Spill]] = {}  # by type of device

    def __reduce__(self) -> tuple[object, ...]:
        # Copies rehearse by themselves.
        return functools.partial(Nets, self._n_segments, always=self._always, governed=self._governed), ()

    @classmethod
    def of(cls, plan: Plan, check: Checking, *, governed: bool, stashes: HeldStashes | None = None) -> Nets | None:
        """Return what a plan is checked by; None where nothing is."""
        if check == "never":
            return None
        return cls(len(plan.segments), always=check == "always", governed=governed, stashes=stashes)

    def begin(self) -> None:
        """Begin another forward of the model."""
        self._turn += 1

    def trial(self, segment: int) -> Trial:
        """Return what is to be noted of the next frame of a segment."""
        if segment in self._unrehearsed:
            return Rehearsal(self, segment)
        turn = self._turn % max(self._n_segments, LEAST_PERIOD)
        checked = (self._always or turn == segment) and segment not in self._unrepeating
        return Trial(self, segment, compares=checked)

    def drawn_from(self, segment: int) -> list[Generator]:
        """Return those besides the devices' own that a segment's calls were seen to draw from; more may be added."""
        return self._drawn_from.setdefault(segment, [])

    def spill(self, device: torch.device) -> Spill:
        """Return where rehearsals put tensors of a device: one that is open, as long as some frame has it.

        Raises:
            NoRoom: there is no room.
        """
        known = self._spills.get(device.type)
        spill = known() if known is not None else None
        if spill is None:
            spill = Spill(self._stashes.open(device), device, ())
            self._spills[device.type] = weakref.ref(spill)
        return spill

    def rehearsed(self, segment: int) -> None:
        """Note that a frame of a segment was compared."""
        self._unrehearsed.discard(segment)

    def no_room(self, error: NoRoom) -> None:
        """Note that what a frame drops fits nowhere: where its replay goes wrong, there is an error."""
        if not self._told_no_room:
            self._told_no_room = True
            _log.warning("a rehearsal has only checksums to go by: %s", error)

    def unrepeating(self, segment: int, key: str) -> None:
        """Note that two replays of one frame differ: nothing can be told from a third."""
        if segment not in self._unrepeating:
            self._unrepeating.add(segment)
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
