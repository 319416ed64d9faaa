"""A recorded step on another batch: what grows with the number of samples, and what stays. No torch.

stays    parameters, buffers, gradients of parameters, casts of weights, and tensors of backward that have the size of
         such a gradient or cast; whole weights and gradients that one rank of several has for a part of the step
grows    everything else, inputs and seconds too
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from .._choose.index.profile_index import CASTS
from .._data.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Steps of one model on batches of several sizes, predicted from one that was recorded.

    Attributes:
        profile: of the recorded step.
        samples: how many it had.
        staying: the tensors that do not grow.
    """

    profile: Profile
    samples: int
    staying: frozenset[int]

    @classmethod
    def of(cls, profile: Profile, samples: int) -> Batches:
        """Find the tensors that do not grow."""
        return cls(profile=profile, samples=samples, staying=_staying(profile))

    def at(self, samples: int) -> Profile:
        """Return the profile of a step on so many samples."""
        if samples == self.samples:
            return self.profile
        profile, times = self.profile, samples / self.samples
        sizes = tuple(
            size if tensor in self.staying else math.ceil(size * times)
            for tensor, size in enumerate(profile.tensors.bytes)
        )
        static = msgspec.structs.replace(profile.static, input_bytes=math.ceil(profile.static.input_bytes * times))
        ops, functions, saves = profile.ops, profile.functions, profile.saves
        return msgspec.structs.replace(
            profile,
            tensors=msgspec.structs.replace(profile.tensors, bytes=sizes),
            samples=samples,
            static=static,
            plain_seconds=profile.plain_seconds * times,
            ops=msgspec.structs.replace(ops, seconds=_scaled(ops.seconds, times)),
            functions=msgspec.structs.replace(functions, seconds=_scaled(functions.seconds, times)),
            saves=msgspec.structs.replace(saves, seconds=_scaled(saves.seconds, times)),
            calls=tuple(
                msgspec.structs.replace(
                    call, enter_seconds=call.enter_seconds * times, exit_seconds=call.exit_seconds * times
                )
                for call in profile.calls
            ),
        )


def _staying(profile: Profile) -> frozenset[int]:
    """Return the tensors whose size depends on the weights alone, not on the batch."""
    tensors, ops = profile.tensors, profile.ops
    casts = {
        tensor
        for name, reads, makes in zip(ops.name, ops.reads, ops.makes, strict=True)
        if name.startswith(CASTS) and not reads
        for tensor in makes
    }
    gradients = {
        tensor
        for tensor, (birth, death) in enumerate(zip(tensors.birth, tensors.death, strict=True))
        if birth >= profile.forward_ticks and death >= profile.ticks
    }
    world = profile.world
    whole = set() if world is None else {*world.gathered, *world.reduced}
    forward = {tensor for tensor, birth in enumerate(tensors.birth) if birth < profile.forward_ticks} - whole
    # A tensor that also has the size of an activation may be either. It counts as growing: safe for a larger batch.
    grows = {tensors.bytes[tensor] for tensor in forward - casts}
    weights = {tensors.bytes[tensor] for tensor in casts | gradients} - grows
    made = {
        tensor
        for tensor, (birth, size) in enumerate(zip(tensors.birth, tensors.bytes, strict=True))
        if birth >= profile.forward_ticks and size in weights
    }
    return frozenset(casts | gradients | made | whole)


def _scaled(seconds: tuple[float, ...], times: float) -> tuple[float, ...]:
    return tuple(each * times for each in seconds)
