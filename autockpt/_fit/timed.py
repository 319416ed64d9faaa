"""A profile's seconds on another device: operator by operator from one roofline to another. No torch.

recorded    ├ mm ──────┤ gelu ─┤ mm ──────┤   products: by the matrix rate, or by the bandwidth if that takes longer
carried     ├ mm ┤ gelu ───┤ mm ┤             all else: by the bandwidth; times inside an operator are interpolated
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from .._choose.index.products import multiplies
from .._data.hardware.devices import Roofline, named
from .._data.hardware.rooflines import ROOFLINES
from .._data.profile import Profile

WIDTHS = {"bf16": "half_flops", "fp16": "half_flops", "fp32": "single_flops"}
"""Which rate of a roofline multiplies matrices, by a word in a recipe's precision."""


NEAR = 1.05
"""A product counts as limited by bandwidth if it takes at most so many times what moving its known bytes takes.

More than once, because it also moves weights, whose bytes are not known.
"""


def is_carried(profile: Profile) -> bool:
    """Whether a profile's seconds can be carried to other devices: they are a roofline's, of a known precision."""
    return profile.mode == "fake" and profile.device in ROOFLINES and bool(_rate(profile))


def carried(profile: Profile, gpu: str) -> Profile:
    """Return a profile with its seconds carried to another device, of `DEVICES`; unchanged if they cannot be.

    Predicted; the seconds of backward are scaled as those of forward are. O(operators).
    """
    new = ROOFLINES.get(gpu)
    if new is None or not is_carried(profile) or _same(profile.device, gpu):
        return profile
    old = ROOFLINES[profile.device]
    ops, functions, sizes = profile.ops, profile.functions, profile.tensors.bytes
    times = [
        _seconds(name, seconds, sum(sizes[tensor] for tensor in (*reads, *makes)), old, new, _rate(profile))
        for name, seconds, reads, makes in zip(ops.name, ops.seconds, ops.reads, ops.makes, strict=True)
    ]
    before, after = np.cumsum([0.0, *ops.seconds]), np.cumsum([0.0, *times])
    slower = float(after[-1] / before[-1]) if before[-1] else 1.0
    by_function = np.zeros(len(functions))
    for function, seconds in zip(ops.function, times, strict=True):
        if function >= 0:
            by_function[function] += seconds

    def moved(seconds: Sequence[float]) -> list[float]:
        times = np.array(seconds, float)
        found: list[float] = (np.interp(times, before, after) + np.maximum(times - before[-1], 0.0) * slower).tolist()
        return found

    entered = moved([call.enter_seconds for call in profile.calls])
    left = moved([call.exit_seconds for call in profile.calls])
    return msgspec.structs.replace(
        profile,
        device=gpu,
        plain_seconds=profile.plain_seconds * slower,
        ops=msgspec.structs.replace(ops, seconds=tuple(times)),
        functions=msgspec.structs.replace(functions, seconds=tuple(by_function.tolist())),
        saves=msgspec.structs.replace(profile.saves, seconds=tuple(moved(profile.saves.seconds))),
        calls=tuple(
            msgspec.structs.replace(call, enter_seconds=enter, exit_seconds=leave)
            for call, enter, leave in zip(profile.calls, entered, left, strict=True)
        ),
    )


def _seconds(name: str, seconds: float, known_bytes: int, old: Roofline, new: Roofline, rate: str) -> float:
    """Return the seconds of an operator on another device. Of the bytes it moves, only those made in the step count."""
    bandwidth = old.bytes_per_second / new.bytes_per_second
    if not multiplies(name) or seconds * old.bytes_per_second <= NEAR * known_bytes:
        return seconds * bandwidth
    computing = seconds * float(getattr(old, rate) / getattr(new, rate))
    return max(computing, known_bytes / new.bytes_per_second)


def _rate(profile: Profile) -> str:
    """The name of the rate at which the step's matrices are multiplied; empty if the profile does not say."""
    precision = profile.recipe.precision if profile.recipe is not None else ""
    return next((rate for word, rate in WIDTHS.items() if word in precision), "")


def _same(device: str, gpu: str) -> bool:
    return device in ROOFLINES and named(device) == gpu
