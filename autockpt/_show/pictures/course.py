"""When in the step everything happens: a plan's memory timeline on a clock of seconds. Plain data, no torch.

A profile has seconds for what forward does, and for the step as a whole. Backward runs the other way round: what was
saved at the last second of forward is read first, so that the seconds that backward took are shared out as those of
forward are, in reverse. A replay is put in where backward first reads what it brings back, and delays all that follows.

    forward                  backward, plain
    ├ h.0 ┼──── h.1 ────┤    ├──── h.1 ────────┼── h.0 ──┤
                             backward, h.1 recomputed
                             ├replay h.1┼──── h.1 ────────┼── h.0 ──┤
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..._choose.candidates.from_plan import find_planned
from ..._choose.timeline import split_levels
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.timeline import MemoryTimeline

OPTIMIZER_SHARE = 0.03
"""Share of the step's seconds that stands for the optimizer step, which no profile times."""

TICK_SECONDS = 1e-6
"""What a tick counts where a profile has no seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Ticks of a profile as predicted seconds of a step, from its start; neither ever runs backwards.

    Attributes:
        ticks: some ticks, in ascending order.
        seconds: when each of them is in the plain step.
        replay_ticks: the ticks at which replays begin, in ascending order.
        delays: seconds of the first so many of them together, from none to all.
    """

    ticks: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    replay_ticks: tuple[int, ...]
    delays: tuple[float, ...]

    def at(self, tick: int) -> float:
        """Return when `tick` is; where a replay begins there, before it."""
        plain = float(np.interp(tick, self.ticks, self.seconds))
        return plain + self.delays[bisect.bisect_left(self.replay_ticks, tick)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A step under a plan, in predicted seconds.

    Attributes:
        timeline: what stands.
        edges: when each of its steps begins, and the last ends.
        clock: when each tick is.
        forward_seconds: when forward ends.
        backward_seconds: when backward ends.
        timed: whether the profile has seconds; if not, a tick counts `TICK_SECONDS`.
    """

    timeline: MemoryTimeline
    edges: tuple[float, ...]
    clock: Clock
    forward_seconds: float
    backward_seconds: float
    timed: bool

    @property
    def peak_seconds(self) -> float:
        """When the peak stands."""
        peak = self.timeline.steps[self.timeline.peak]
        if peak.phase == "optimizer":
            return (self.backward_seconds + self.edges[-1]) / 2
        return (self.clock.at(peak.top_tick) + self.clock.at(peak.top_tick + 1)) / 2


def follow(profile: Profile, plan: Plan) -> Course:
    """Predict when in the step under `plan` everything happens; one without segments gives the plain step.

    Levels are the judge's; seconds end with those of the plain step and of the replays. O(tensors + saves + ticks).
    """
    planned = find_planned(profile, plan)
    timeline = split_levels(planned, range(len(planned.replays)))
    found = sorted(  # the first addition is the replay itself
        (planned.edges[each.additions[0].start], each.recompute_seconds) for each in planned.problem.candidates
    )
    knots = _plain_knots(profile)
    timed = knots[-1][1] > 0
    if not timed:
        knots = [(0, 0.0), (profile.ticks, profile.ticks * TICK_SECONDS)]
    ticks, seconds = np.array(knots, np.float64).T.copy()
    clock = Clock(
        ticks=ticks,
        seconds=seconds,
        replay_ticks=tuple(tick for tick, _ in found),
        delays=tuple(itertools.accumulate((seconds for _, seconds in found), initial=0.0)),
    )
    end = clock.at(profile.ticks)
    has_optimizer = timeline.steps[-1].phase == "optimizer"
    return Course(
        timeline=timeline,
        edges=(*(clock.at(step.tick) for step in timeline.steps), end * (1 + OPTIMIZER_SHARE * has_optimizer)),
        clock=clock,
        forward_seconds=clock.at(profile.forward_ticks),
        backward_seconds=end,
        timed=timed,
    )


def _plain_knots(profile: Profile) -> list[tuple[int, float]]:
    """When some ticks of the plain step are, each tick once, in ascending order."""
    saves = profile.saves
    known = [(0, 0.0)]
    for call in profile.calls:
        known += [(call.enter, call.enter_seconds), (call.exit, call.exit_seconds)]
    packs = zip(saves.pack, saves.seconds, strict=True)
    known += [(pack, seconds) for pack, seconds in packs if pack <= profile.forward_ticks]
    forward_seconds = max(seconds for _, seconds in known)
    known.append((profile.forward_ticks, forward_seconds))
    backward_seconds = max(profile.plain_seconds - forward_seconds, 0.0)
    for unpack, seconds in zip(saves.unpack, saves.seconds, strict=True):
        if unpack < profile.ticks:
            mirrored = 1 - min(seconds / forward_seconds, 1.0) if forward_seconds else 0.0
            known.append((unpack, forward_seconds + backward_seconds * mirrored))
    known.append((profile.ticks, forward_seconds + backward_seconds))
    known.sort()
    latest = dict(zip((tick for tick, _ in known), itertools.accumulate((each for _, each in known), max), strict=True))
    return list(latest.items())
