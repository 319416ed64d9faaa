"""The memory of a step under a plan, split by what it is; `_choose/timeline.py` predicts it."""

from __future__ import annotations

from typing import Literal

import msgspec

from .amounts import Bytes

Phase = Literal["forward", "backward", "optimizer"]


class MemoryStep(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in one stretch of the step, where its level is highest. All bytes are predicted.

    Attributes:
        name: where in the step this is, in words.
        phase: forward (loss included), backward or optimizer.
        tick: the profile's tick at which the stretch begins; the optimizer's begin when the clock ends.
        top_tick: the tick at which its level is highest.
        static_bytes: parameters, buffers, inputs, optimizer state.
        gradient_bytes: parameter gradients, those from before the step included.
        output_bytes: what forward made and the caller still holds.
        activation_bytes: what calls that are kept have saved.
        boundary_bytes: what is held for the replays: boundaries, what kept units leave alive, copies of buffers.
        restored_bytes: what replays have brought back, and what a replay makes while it runs.
        transient_bytes: everything else: temporaries, and gradients of activations.
    """

    name: str
    phase: Phase
    tick: int
    top_tick: int
    static_bytes: Bytes
    gradient_bytes: Bytes
    output_bytes: Bytes
    activation_bytes: Bytes
    boundary_bytes: Bytes
    restored_bytes: Bytes
    transient_bytes: Bytes

    @property
    def level_bytes(self) -> int:
        """Sum of all parts."""
        return (
            self.static_bytes
            + self.gradient_bytes
            + self.output_bytes
            + self.activation_bytes
            + self.boundary_bytes
            + self.restored_bytes
            + self.transient_bytes
        )


class MemoryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted memory over a whole step, in time order.

    Attributes:
        model: class of the model.
        ticks: length of the profile's clock.
        peak: index of the first step at which the peak stands.
        steps: the stretches of the step; the last ends with it.
    """

    model: str
    ticks: int
    peak: int
    steps: tuple[MemoryStep, ...]

    @property
    def peak_bytes(self) -> int:
        """Highest level over the whole step."""
        return self.steps[self.peak].level_bytes
