"""Which replays of a plan are compared with their forwards, and what follows if they differ.

a segment's first frame    a rehearsal: dropped tensors are spilled too; backward reads those if the replay differs
its second frame           a check that also looks at what the replay changes in Python objects, and puts it back
its later frames           a check: one segment per step, in turn; checksums of replay and forward must be equal, which
                           is read a step later on a device, unless all are checked
a replay that differs      the segment's calls are kept from then on, and another plan is made
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias

from ..._data.plan import Plan
from ..._stash.held import HeldStashes
from .check import Check
from .findings import PLANNED, Findings, Told
from .rehearsal import Rehearsal, Spills

Checking: TypeAlias = Literal["sampled", "always", "never"]

LEAST_PERIOD = 16
"""How often later steps compare: a segment is checked once in so many steps, or once in as many steps as there are
segments, if that is more. What begins to differ late is found that much later."""


class ReplayChecks:
    """Replays the frames of one plan, and compares some of them with their forwards.

    Args:
        n_segments: number of the plan's segments.
        always: whether each step checks all segments; if not, it checks at most one.
        governed: whether a governor makes another plan if a call of this one cannot be replayed.
        stashes: opens the stashes that rehearsals spill to; None if each stash is to be a new one.
        told: how it is said that a call is kept.

    Attributes:
        findings: what replays have shown.
        refused: numbers of the segments that are kept, since a replay failed or differed.
        rehearsed: numbers of the segments that have had their rehearsal.
    """

    def __init__(
        self,
        n_segments: int,
        *,
        always: bool,
        governed: bool,
        stashes: HeldStashes | None = None,
        told: Told = PLANNED,
    ) -> None:
        self.findings = Findings(governed=governed, told=told)
        self.refused, self.rehearsed = self.findings.refused, self.findings.rehearsed
        self._n_segments, self._always, self._governed = n_segments, always, governed
        self._spills = Spills(stashes or HeldStashes())
        self._uncompared: dict[int, Check] = {}  # by segment; frames share them, as they hold nothing of a frame

    def __reduce__(self) -> tuple[object, ...]:
        # A copy starts anew: its first frames are rehearsals.
        return functools.partial(ReplayChecks, self._n_segments, always=self._always, governed=self._governed), ()

    @classmethod
    def of(
        cls, plan: Plan, check: Checking, *, governed: bool, stashes: HeldStashes | None = None
    ) -> ReplayChecks | None:
        """Return the checks of a plan; None if `check` is never."""
        if check == "never":
            return None
        return cls(len(plan.segments), always=check == "always", governed=governed, stashes=stashes)

    def begin(self) -> None:
        """Begin another forward of the model."""
        self.findings.verdicts.turn += 1

    def replayer(self, segment: int) -> Check:
        """Return the replayer of a segment's next frame."""
        findings = self.findings
        if segment not in findings.rehearsed:
            return Rehearsal(findings, segment, self._spills)
        if segment not in findings.looked_again:  # the first call may set up what later ones change
            findings.looked_again.add(segment)
            return Check(findings, segment, compares=segment not in findings.unrepeating, looks=True)
        turn = findings.verdicts.turn % max(self._n_segments, LEAST_PERIOD)
        if (self._always or turn == segment) and segment not in findings.unrepeating:
            return Check(findings, segment, compares=True, looks=self._always)
        check = self._uncompared.get(segment)
        if check is None:
            check = self._uncompared[segment] = Check(findings, segment, compares=False)
        return check
