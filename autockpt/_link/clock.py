"""Seconds at the ticks of a recorded step: those of forward were recorded, those of backward are in proportion."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._data.profile import Profile


class StepClock:
    """Tells when a tick of the plain step is, in seconds from its beginning.

    Backward takes what the step took besides forward, and is not timed read by read: what was saved late in forward is
    read early, in proportion.

    Args:
        profile: the recorded step.
    """

    def __init__(self, profile: Profile) -> None:
        calls, saves = profile.calls, profile.saves
        ticks = [0, profile.ticks]
        ticks += [call.enter for call in calls] + [call.exit for call in calls]
        at = [0.0, profile.plain_seconds]
        at += [call.enter_seconds for call in calls] + [call.exit_seconds for call in calls]
        forward = max(at[2:])
        backward = max(profile.plain_seconds - forward, 0.0)
        for pack, unpack, seconds in zip(saves.pack, saves.unpack, saves.seconds, strict=True):
            ticks.append(pack)
            at.append(seconds)
            if unpack < profile.ticks and forward:
                ticks.append(unpack)
                at.append(forward + max(1.0 - seconds / forward, 0.0) * backward)
        order = np.argsort(np.array(ticks), kind="stable")
        self._ticks: npt.NDArray[np.float64] = np.array(ticks, np.float64)[order]
        self._seconds: npt.NDArray[np.float64] = np.maximum.accumulate(np.array(at)[order])

    def at(self, tick: int) -> float:
        """Seconds from the step's beginning."""
        return float(np.interp(tick, self._ticks, self._seconds))
