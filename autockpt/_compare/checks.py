"""What is compared of the replays of a plan, and what follows where they differ.

a segment's first frame    rehearsed: what it drops is spilled too, and backward gets that where the replay differs
later ones                 one segment a step, in turn: the replay's checksums must be those of forward
found to differ            the segment's calls are kept from then on; who made the plan is told to make another
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias

from .._data.plan import Plan
from .._stash.held import HeldStashes
from .check import Check
from .findings import Findings
from .rehearsal import Rehearsal, Spills

Checking: TypeAlias = Literal["sampled", "always", "never"]

LEAST_PERIOD = 16
"""Steps in which every segment is checked once, where there are no more segments than that."""


class ReplayChecks:
    """Replays the frames of one plan, and compares some of them with their forwards.

    Args:
        n_segments: of the plan.
        always: whether all segments are checked in every step, or else one.
        governed: whether somebody makes another plan where this one is at fault.
        stashes: opens stashes for rehearsals; None where nobody holds any.

    Attributes:
        findings: what replays have shown.
        refused: numbers of the segments that are kept, since a replay of them differed.
    """

    def __init__(self, n_segments: int, *, always: bool, governed: bool, stashes: HeldStashes | None = None) -> None:
        self.findings = Findings(governed=governed)
        self.refused = self.findings.refused
        self._n_segments, self._always, self._governed = n_segments, always, governed
        self._spills = Spills(stashes or HeldStashes())
        self._turn = 0

    def __reduce__(self) -> tuple[object, ...]:
        # Copies rehearse by themselves.
        return functools.partial(ReplayChecks, self._n_segments, always=self._always, governed=self._governed), ()

    @classmethod
    def of(
        cls, plan: Plan, check: Checking, *, governed: bool, stashes: HeldStashes | None = None
    ) -> ReplayChecks | None:
        """Return what a plan is checked by; None where nothing is."""
        if check == "never":
            return None
        return cls(len(plan.segments), always=check == "always", governed=governed, stashes=stashes)

    def begin(self) -> None:
        """Begin another forward of the model."""
        self._turn += 1

    def replayer(self, segment: int) -> Check:
        """Return what replays the next frame of a segment, and notes what that needs."""
        findings = self.findings
        if segment not in findings.rehearsed:
            return Rehearsal(findings, segment, self._spills)
        turn = self._turn % max(self._n_segments, LEAST_PERIOD)
        checked = (self._always or turn == segment) and segment not in findings.unrepeating
        return Check(findings, segment, compares=checked)
