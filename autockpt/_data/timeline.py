"""The memory of a step under a plan, split by what it is; `_choose/predict` has how it is predicted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from ..solvers.units import format_bytes
from .text.amounts import Bytes

Phase = Literal["forward", "backward", "optimizer"]

PARTS = {
    "parameter_bytes": "parameters",
    "buffer_bytes": "buffers",
    "optimizer_bytes": "optimizer state",
    "input_bytes": "inputs",
    "other_bytes": "what else is alive",
    "gradient_bytes": "gradients",
    "output_bytes": "outputs held by the caller",
    "activation_bytes": "activations of kept calls",
    "boundary_bytes": "boundaries",
    "restored_bytes": "restored by replays",
    "transient_bytes": "transients",
}
"""What stands at a peak, in words."""

LEAST, MOST_NAMED = 0.01, 6
"""Share of a peak below which a part is not named by itself, and how many are."""


MOST_SHARES = 3
"""Parts that are named where there is room for a line."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What stands at a moment of the step, beside what is static. All bytes are predicted.

    Attributes:
        gradient_bytes: parameter gradients, those from before the step included.
        output_bytes: what forward made and the caller still holds.
        activation_bytes: what calls that are kept have saved.
        boundary_bytes: what is held for the replays: boundaries, what kept units leave alive, copies of buffers.
        restored_bytes: what replays have brought back, what a replay makes while it runs, and what it keeps for its
            parts where it goes in some.
        transient_bytes: everything else: temporaries, and gradients of activations.
    """

    gradient_bytes: Bytes
    output_bytes: Bytes
    activation_bytes: Bytes
    boundary_bytes: Bytes
    restored_bytes: Bytes
    transient_bytes: Bytes


class MemoryStep(Standing, frozen=True, kw_only=True):
    """What stands in one stretch of the step, where its level is highest.

    Attributes:
        name: where in the step this is, in words.
        phase: forward (loss included), backward or optimizer.
        tick: the profile's tick at which the stretch begins; the optimizer's begin when the clock ends.
        top_tick: the tick at which its level is highest.
        static_bytes: parameters, buffers, inputs, optimizer state.
    """

    name: str
    phase: Phase
    tick: int
    top_tick: int
    static_bytes: Bytes

    @property
    def level_bytes(self) -> int:
        """Sum of all parts."""
        return sum(getattr(self, name) for name in self.__struct_fields__ if name.endswith("_bytes"))


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


class PeakParts(Standing, frozen=True, kw_only=True):
    """What stands at the peak of a plan, and where that is. The sum of all bytes is the peak.

    Attributes:
        step: where in the step it stands, in words.
        phase: forward, backward or optimizer.
        op: the operator that runs there; empty where it is not known, as in backward.
        segment: the segment of which replays have brought back most there; empty where they have brought back nothing.
        parameter_bytes: parameters.
        buffer_bytes: buffers.
        optimizer_bytes: optimizer state.
        input_bytes: the batch.
        other_bytes: what else is alive; negative where measurements were below the rest.
        holders: who holds how much of `output_bytes` in the caller's stead, in words, largest first.
        kept: of `activation_bytes`, which calls hold how much, and why they are kept, in words; largest first.
    """

    step: str
    phase: Phase
    op: str
    segment: str
    parameter_bytes: Bytes
    buffer_bytes: Bytes
    optimizer_bytes: Bytes
    input_bytes: Bytes
    other_bytes: int = 0
    holders: tuple[tuple[str, int], ...] = ()
    kept: tuple[tuple[str, int], ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Sum of all parts."""
        return sum(size for _, size in self.named())

    @property
    def callers_bytes(self) -> int:
        """Of `output_bytes`, what the caller holds."""
        return self.output_bytes - sum(size for _, size in self.holders)

    def named(self) -> Iterator[tuple[str, int]]:
        """Each part in words, with its bytes."""
        for part, words in PARTS.items():
            yield words, self.callers_bytes if part == "output_bytes" else getattr(self, part)
        yield from ((f"held {who}", size) for who, size in self.holders)

    def shares(self, most: int = MOST_SHARES) -> str:
        """The largest parts, each as a share of the peak."""
        return ", ".join(f"{size / self.peak_bytes:.0%} {name}" for name, size in self._largest(most))

    def _largest(self, most: int) -> list[tuple[str, int]]:
        return [part for part in sorted(self.named(), key=lambda part: -part[1])[:most] if part[1] > 0]

    def kept_words(self, *, decimal: bool = False) -> str:
        """Say of the largest kept calls how much they hold and why; empty if that is not among the largest parts."""
        if not any(name == PARTS["activation_bytes"] for name, _ in self._largest(MOST_SHARES)):
            return ""
        return "; ".join(f"{format_bytes(size, decimal=decimal)} of {who}" for who, size in self.kept[:MOST_SHARES])

    def __str__(self) -> str:
        """The parts that count, largest first."""
        there = sorted((part for part in self.named() if part[1]), key=lambda part: -part[1])
        shown = [part for part in there if part[1] >= LEAST * self.peak_bytes][:MOST_NAMED]
        said = ", ".join(f"{name} {format_bytes(size)}" for name, size in shown)
        rest_bytes = sum(size for _, size in there[len(shown) :])
        said += f", smaller parts {format_bytes(rest_bytes)}" if len(shown) < len(there) else ""
        return f"{said} (what is restored is mostly of {self.segment})" if self.segment else said
