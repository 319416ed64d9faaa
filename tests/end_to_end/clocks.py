"""Profiles in which forward takes other times than it took."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import msgspec

from autockpt import Profile
from benchmarks.saved_bytes.problem import with_clock
from tests.doors import multiplies

OPERATOR_SECONDS, BYTE_SECONDS, PRODUCT_BYTE_SECONDS = 1e-5, 1e-9, 1e-8
"""What an operator takes, whatever it works on, and for each byte; the last where it multiplies or convolves."""

BACKWARD = 2
"""Over forward, what backward takes."""


def timed_by_bytes(profile: Profile) -> Profile:
    """Let all seconds follow from bytes, so that what comes of them is the same on every machine, whatever runs beside.

    Operators take time for what they read and make, functions that of their operators, and backward twice forward's.
    """
    ops, sizes = profile.ops, profile.tensors.bytes
    taken = [
        OPERATOR_SECONDS
        + sum(sizes[t] for t in {*reads, *makes, *writes})
        * (PRODUCT_BYTE_SECONDS if multiplies(name) else BYTE_SECONDS)
        for name, reads, makes, writes in zip(ops.name, ops.reads, ops.makes, ops.writes, strict=True)
    ]
    functions = [0.0] * len(profile.functions)
    for function, seconds in zip(ops.function, taken, strict=True):
        if function >= 0:
            functions[function] += seconds
    timed = retimed(profile, functions)
    return msgspec.structs.replace(
        timed,
        plain_seconds=(1 + BACKWARD) * timed.calls[0].exit_seconds,
        ops=msgspec.structs.replace(ops, seconds=tuple(taken)),
    )


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
