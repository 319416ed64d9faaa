"""Seconds at the ticks of a recorded step: recorded in forward, in proportion to them in backward."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..._data.profile import Profile


class StepClock:
    """Tells when a tick of the plain step is, in seconds from its beginning.

    Backward gets the step's seconds less those of forward. Its reads have no recorded times, so they are spread in
    proportion: a tensor that was saved late in forward is read early in backward.

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
