"""What one rank of several holds in a step, part by part; each part is counted at its own peak. No torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from .._data.profile import Profile
from .._data.step.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes that one rank holds, predicted.

    Attributes:
        parameter_bytes: its part of the weights.
        gradient_bytes: its part of the gradients, once the step is over.
        optimizer_bytes: its part of the optimizer's state.
        bucket_bytes: the buckets in which gradients are added between replicas.
        gathered_bytes: the most that gathered weights and the buffers of their collectives take at once.
        reduced_bytes: the most that whole gradients and the buffers of their collectives take at once.
        other_bytes: the most that all other tensors take at once, mostly activations; with the batch and buffers.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    bucket_bytes: int
    gathered_bytes: int
    reduced_bytes: int
    other_bytes: int


def held_by(profile: Profile, world: World) -> Held:
    """Return what a rank holds in the step of a profile. O(tensors)."""
    tensors, static = profile.tensors, profile.static
    stays = {
        tensor
        for tensor, (birth, death) in enumerate(zip(tensors.birth, tensors.death, strict=True))
        if birth >= profile.forward_ticks and death >= profile.ticks
    }
    gathered, reduced = set(world.gathered), {*world.reduced} - stays
    others = set(range(len(tensors))) - stays - gathered - reduced
    lie_there = bool(static.gradient_bytes and world.bucket_bytes)
    return Held(
        parameter_bytes=static.parameter_bytes,
        gradient_bytes=sum(tensors.bytes[tensor] for tensor in stays) + (0 if lie_there else static.gradient_bytes),
        optimizer_bytes=static.optimizer_bytes,
        bucket_bytes=world.bucket_bytes,
        gathered_bytes=_most(profile, gathered),
        reduced_bytes=_most(profile, reduced),
        other_bytes=_most(profile, others)
        + static.buffer_bytes
        + static.input_bytes
        + static.other_bytes
        - (0 if lie_there else world.bucket_bytes),
    )


def _most(profile: Profile, chosen: Iterable[int]) -> int:
    """Return the most bytes that some tensors take at once."""
    change, tensors = [0] * (profile.ticks + 1), profile.tensors
    for tensor in chosen:
        change[tensors.birth[tensor]] += tensors.bytes[tensor]
        change[tensors.death[tensor]] -= tensors.bytes[tensor]
    return max(itertools.accumulate(change))
