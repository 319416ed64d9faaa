"""A plan's memory timeline in seconds instead of ticks. Plain data, no torch.

A profile has seconds for what forward does, and for the whole step, but not for the parts of backward. Backward reads
first what forward saved last. So the seconds of backward are shared out like those of forward, in reverse. A replay
begins where backward first reads a tensor that it restores, and delays all that follows.

    forward                  backward, plain
    ├ h.0 ┼──── h.1 ────┤    ├──── h.1 ────────┼── h.0 ──┤
                             backward, h.1 recomputed
                             ├replay h.1┼──── h.1 ────────┼── h.0 ──┤
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..._choose.candidates.from_plan import find_planned
from ..._choose.predict.timeline import split_levels
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.timeline import MemoryTimeline

OPTIMIZER_SHARE = 0.03
"""Seconds that are drawn for the optimizer step, as a share of the step's: no profile times it."""

TICK_SECONDS = 1e-6
"""Seconds that a tick counts if a profile has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A step under a plan, in predicted seconds.

    Attributes:
        timeline: what is allocated at each of its steps.
        edges: when each step of the timeline begins, and when the last one ends.
        replays: when each replay begins, and how long it takes.
        peak_seconds: when the peak is reached.
        forward_seconds: when forward ends.
        backward_seconds: when backward ends.
        timed: whether the profile has seconds; if not, a tick counts `TICK_SECONDS`.
    """

    timeline: MemoryTimeline
    edges: tuple[float, ...]
    replays: tuple[tuple[float, float], ...]
    peak_seconds: float
    forward_seconds: float
    backward_seconds: float
    timed: bool


def follow(profile: Profile, plan: Plan) -> Course:
    """Predict when everything happens in the step under `plan`. A plan without segments gives the plain step.

    Levels are those that `simulate` predicts. The seconds add up to those of the plain step and the replays.
    O(tensors + saves + ticks).
    """
    planned = find_planned(profile, plan)
    timeline = split_levels(planned, range(len(planned.replays)))
    knots = _plain_knots(profile)
    timed = knots[-1][1] > 0
    if not timed:
        knots = [(0, 0.0), (profile.ticks, profile.ticks * TICK_SECONDS)]
    ticks, plain = np.array(knots, np.float64).T
    # A candidate's first addition is the peak of its own replay, which begins where the addition begins. If the replay
    # goes in parts, it is the peak of the part that comes first in forward.
    replays = sorted(
        (planned.edges[each.additions[0].start], each.recompute_seconds) for each in planned.problem.candidates
    )
    delays = np.cumsum([0.0, *(seconds for _, seconds in replays)])

    def at(wanted: list[int]) -> list[float]:
        """The seconds of some ticks. If a replay begins at a tick, this is before the replay."""
        begun = np.searchsorted([tick for tick, _ in replays], wanted)
        found: list[float] = (np.interp(wanted, ticks, plain) + delays[begun]).tolist()
        return found

    peak, has_optimizer = timeline.steps[timeline.peak], timeline.steps[-1].phase == "optimizer"
    forward_end, end, *around_peak = at([profile.forward_ticks, profile.ticks, peak.top_tick, peak.top_tick + 1])
    last = end * (1 + OPTIMIZER_SHARE * has_optimizer)
    return Course(
        timeline=timeline,
        edges=(*at([step.tick for step in timeline.steps]), last),
        replays=tuple(zip(at([tick for tick, _ in replays]), (seconds for _, seconds in replays), strict=True)),
        peak_seconds=sum((end, last) if peak.phase == "optimizer" else around_peak) / 2,
        forward_seconds=forward_end,
        backward_seconds=end,
        timed=timed,
    )


def _plain_knots(profile: Profile) -> list[tuple[int, float]]:
    """The ticks of the plain step whose seconds are known, with these, in ascending order, each tick once."""
    saves = profile.saves
    known = [(0, 0.0)]
    for call in profile.calls:
        known += [(call.enter, call.enter_seconds), (call.exit, call.exit_seconds)]
    packs = zip(saves.pack, saves.seconds, strict=True)
    if profile.late_forwards:  # backwards run between forwards, so the seconds of calls around them time them
        known += [*packs, (profile.ticks, max(profile.plain_seconds, *(seconds for _, seconds in known)))]
        return _ascending(known)
    known += [(pack, seconds) for pack, seconds in packs if pack <= profile.forward_ticks]
    forward_seconds = max(seconds for _, seconds in known)
    known.append((profile.forward_ticks, forward_seconds))
    backward_seconds = max(profile.plain_seconds - forward_seconds, 0.0)
    for unpack, seconds in zip(saves.unpack, saves.seconds, strict=True):
        if unpack < profile.ticks:
            mirrored = 1 - min(seconds / forward_seconds, 1.0) if forward_seconds else 0.0
            known.append((unpack, forward_seconds + backward_seconds * mirrored))
    known.append((profile.ticks, forward_seconds + backward_seconds))
    return _ascending(known)


def _ascending(known: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Sort knots. Of each tick the latest time is kept, and times never decrease."""
    known = sorted(known)
    latest = dict(zip((tick for tick, _ in known), itertools.accumulate((each for _, each in known), max), strict=True))
    return list(latest.items())
