"""A step in several microbatches: what a later one holds, and what adding gradients takes. No torch.

microbatch    1               2               3, the last
gradients     come one by one are all there, and each new one is added and freed     the optimizer steps once
"""

from __future__ import annotations

import msgspec

from .._choose.replay_cost.two_clocks import Launches
from .._data.hardware.rooflines import ROOFLINES
from .._data.profile import Profile

LINGERS = 4
"""Ticks for which a new gradient stands until it is added: it passes a view or two, and another may come between."""

MOVES = 3
"""Times that adding a gradient moves its bytes: both are read, and one is written."""

ADDITIONS = ("aten.add.", "aten.add_.")


def gradients_of(profile: Profile) -> tuple[int, ...]:
    """Return the gradients that a step leaves: what is born in its backward and outlives it. O(tensors)."""
    tensors = profile.tensors
    lives = enumerate(zip(tensors.birth, tensors.death, strict=True))
    return tuple(each for each, (birth, death) in lives if birth >= profile.forward_ticks and death >= profile.ticks)


def later(profile: Profile) -> Profile:
    """Return the step of a later microbatch: beside the gradients of those before it, to which it adds its own.

    At each moment it holds no less than the first one, so the peak of all microbatches is its peak. Predicted, and held
    to steps that were recorded so; O(tensors).
    """
    tensors, new = profile.tensors, set(gradients_of(profile)) - set(profile.saves.tensor)
    deaths = tuple(
        max(min(birth + LINGERS, profile.ticks - 1), birth + 1) if tensor in new else death
        for tensor, (birth, death) in enumerate(zip(tensors.birth, tensors.death, strict=True))
    )
    before = profile.static.gradient_bytes + sum(tensors.bytes[tensor] for tensor in new)
    return msgspec.structs.replace(
        profile,
        static=msgspec.structs.replace(profile.static, gradient_bytes=before),
        tensors=msgspec.structs.replace(tensors, death=deaths),
    )


def floor_bytes(profile: Profile) -> int:
    """Return what no plan changes: what stands before the step, and the optimizer's step after it."""
    return max(profile.static.total_bytes, profile.optimizer_peak_bytes)


def adding(profile: Profile, launch_seconds: float) -> Launches:
    """Return the kernels that add the gradients of a step to those before it.

    Args:
        profile: of a step that adds to none, with the seconds of a device. Bytes move at the known rate of that, else
            as in the step's own additions; without either they take nothing.
        launch_seconds: of the host, for one kernel.
    """
    new, rates = gradients_of(profile), ROOFLINES.get(profile.device)
    moved = MOVES * sum(profile.tensors.bytes[tensor] for tensor in new)
    per_second = rates.bytes_per_second if rates else _bytes_per_second(profile)
    return Launches(len(new) * launch_seconds, moved / per_second if per_second else 0.0, len(new))


def _bytes_per_second(profile: Profile) -> float:
    """Return how fast the additions of a step read and write bytes; 0 where that is not known."""
    ops, sizes = profile.ops, profile.tensors.bytes
    adds = [  # in place the first that is read is written
        (sum(sizes[tensor] for tensor in (*reads, *(makes or reads[:1]))), seconds)
        for name, reads, makes, seconds in zip(ops.name, ops.reads, ops.makes, ops.seconds, strict=True)
        if name.startswith(ADDITIONS)
    ]
    moved, seconds = map(sum, zip(*adds, strict=True)) if adds else (0, 0.0)
    return moved / seconds if seconds else 0.0


def mixes_samples(profile: Profile) -> bool:
    """Whether a step normalizes by statistics of the whole batch, as BatchNorm does while it trains.

    It is seen by what runs: a call that normalizes by a batch, and changes its buffers.
    """
    return any(
        "batch_norm" in name and bool(profile.calls[call].buffers)
        for name, call in zip(profile.ops.name, profile.ops.call, strict=True)
    )
