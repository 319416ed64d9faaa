"""Profiles in which forward takes other times than it took."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from autockpt import Profile
from benchmarks.saved_bytes.problem import with_clock


def retimed(profile: Profile, seconds: Sequence[float]) -> Profile:
    """Give torch functions other seconds, and calls and saves a clock that goes on in those and stands still between.

    Args:
        profile: the recorded step.
        seconds: of each of its functions, which are over with the last tensor that they bear.
    """
    functions, births = profile.functions, sorted(profile.tensors.birth)
    over = []
    for enter, exit_ in zip(functions.enter, functions.exit, strict=True):
        last = bisect.bisect_left(births, exit_) - 1
        over.append(births[last] if last >= 0 and births[last] > enter else exit_)
    ran = sorted(zip(over, seconds, strict=True))
    ticks, spent = [tick for tick, _ in ran], [0.0, *itertools.accumulate(each for _, each in ran)]

    def clock(tick: int) -> float:
        return spent[bisect.bisect_left(ticks, tick)]

    return with_clock(profile, clock, seconds)
