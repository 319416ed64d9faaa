"""What the lowest peak that can be reached consists of, where it stands, and what would lower it. No torch."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import msgspec

from .._data.amounts import Bytes
from .._data.profile import Profile
from .._data.timeline import Phase
from ..solvers import format_bytes
from ..solvers.common import Plan as Chosen
from .candidates import Candidates
from .timeline import split_levels

SMALL = 0.05
"""Share of what is missing below which a part is no lever."""


class PeakParts(msgspec.Struct, frozen=True, kw_only=True):
    """What stands at the peak of a plan, and where that is. All bytes are predicted, and their sum is the peak.

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
        gradient_bytes: parameter gradients so far, those from before the step included.
        output_bytes: what forward made and the caller still holds.
        activation_bytes: what calls that are kept have saved.
        boundary_bytes: what is held for the replays.
        restored_bytes: what replays have brought back, and what a replay makes while it runs.
        transient_bytes: everything else: temporaries, and gradients of activations.
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
    gradient_bytes: Bytes
    output_bytes: Bytes
    activation_bytes: Bytes
    boundary_bytes: Bytes
    restored_bytes: Bytes
    transient_bytes: Bytes

    @property
    def peak_bytes(self) -> int:
        """Sum of all parts."""
        return sum(size for _, size in self.named())

    def named(self) -> Iterator[tuple[str, int]]:
        """Each part in words, with its bytes."""
        yield "parameters", self.parameter_bytes
        yield "buffers", self.buffer_bytes
        yield "optimizer state", self.optimizer_bytes
        yield "inputs", self.input_bytes
        yield "what else is alive", self.other_bytes
        yield "gradients", self.gradient_bytes
        yield "outputs held by the caller", self.output_bytes
        yield "activations of kept calls", self.activation_bytes
        yield "boundaries", self.boundary_bytes
        yield "restored by replays", self.restored_bytes
        yield "transients", self.transient_bytes

    def __str__(self) -> str:
        """The parts that are there, largest first."""
        there = sorted((part for part in self.named() if part[1]), key=lambda part: -part[1])
        said = ", ".join(f"{name} {format_bytes(size)}" for name, size in there)
        return f"{said} (most of what is restored belongs to {self.segment})" if self.segment else said


def peak_parts(profile: Profile, candidates: Candidates, chosen: Chosen) -> PeakParts:
    """Take the peak of a plan apart.

    Args:
        profile: what the candidates were found in.
        candidates: the candidates.
        chosen: indices of those that are recomputed.

    Returns:
        The parts, at the first step in which the peak stands.
    """
    timeline = split_levels(profile, candidates, chosen)
    at, static = timeline.steps[timeline.peak], profile.static
    return PeakParts(
        step=at.name,
        phase=at.phase,
        op=_op(profile, at.top_tick),
        segment=_segment(candidates, chosen, timeline.peak) if at.restored_bytes else "",
        parameter_bytes=static.parameter_bytes,
        buffer_bytes=static.buffer_bytes,
        optimizer_bytes=static.optimizer_bytes,
        input_bytes=static.input_bytes,
        other_bytes=static.other_bytes,
        gradient_bytes=at.gradient_bytes,
        output_bytes=at.output_bytes,
        activation_bytes=at.activation_bytes,
        boundary_bytes=at.boundary_bytes,
        restored_bytes=at.restored_bytes,
        transient_bytes=at.transient_bytes,
    )


def _op(profile: Profile, tick: int) -> str:
    """Name the operator that made the tensor born at a tick of forward."""
    birth = profile.tensors.birth
    tensor = bisect.bisect_left(birth, tick)
    if tick >= profile.forward_ticks or tensor == len(birth) or birth[tensor] != tick:
        return ""
    made = (name for name, makes in zip(profile.ops.name, profile.ops.makes, strict=True) if tensor in makes)
    return next(made, "")


def _segment(candidates: Candidates, chosen: Chosen, step: int) -> str:
    """Name the chosen candidate whose replay adds most to a step."""

    def added(c: int) -> int:
        return sum(a.bytes for a in candidates.problem.candidates[c].additions if a.start <= step < a.until)

    return candidates.problem.candidates[max(chosen, key=added)].name


def advise(
    parts: PeakParts, budget_bytes: int, *, unpinned_bytes: int | None = None, solver: str = "auto"
) -> list[str]:
    """Say what would help where even the lowest peak is above a budget; only what the figures bear out.

    Args:
        parts: of the lowest peak.
        budget_bytes: what was asked for.
        unpinned_bytes: the lowest peak without pins; None where there are none.
        solver: who found no lower peak.

    Returns:
        Sentences, the surest first.
    """
    minimum, budget = parts.peak_bytes, format_bytes(budget_bytes)
    missing = minimum - budget_bytes
    lines = [f"Ask for at least {minimum:,} bytes, or for 'min': the error carries the plan that keeps to them."]
    if parts.parameter_bytes > budget_bytes:
        lines.append(
            f"The parameters alone, {format_bytes(parts.parameter_bytes)}, are above the budget of {budget}: only "
            "fewer or narrower ones, or several devices to share them, would fit."
        )
        return lines
    fixed = parts.parameter_bytes + parts.buffer_bytes + parts.optimizer_bytes
    grows = parts.input_bytes + parts.output_bytes + parts.activation_bytes + parts.boundary_bytes
    grows += parts.restored_bytes + (parts.transient_bytes if parts.phase != "optimizer" else 0)
    if fixed > budget_bytes:
        lines.append(
            f"What stands before the batch comes, {format_bytes(fixed)} of parameters, buffers and optimizer state, is "
            f"above the budget of {budget}: no plan and no batch fits."
        )
    if unpinned_bytes is not None and unpinned_bytes < minimum:
        enough = "fits" if unpinned_bytes <= budget_bytes else f"reaches {format_bytes(unpinned_bytes)}"
        lines.append(f"Lift pins: without them the same solver {enough}.")
    if solver not in ("auto", "ilp"):
        lines.append(f"Solver {solver!r} looks at few plans: 'auto' may get lower.")
    if parts.optimizer_bytes >= missing:
        left = format_bytes(parts.optimizer_bytes - missing)
        lines.append(f"Take an optimizer that holds less: with a state of at most {left} it fits.")
    elif parts.optimizer_bytes > SMALL * missing:
        share = parts.optimizer_bytes / missing
        lines.append(f"An optimizer without state would spare {share:.0%} of the {format_bytes(missing)} missing.")
    if fixed <= budget_bytes and grows > missing:
        lines.append(
            f"Take a smaller batch or shorter sequences: {format_bytes(grows)} of the peak grow with them, so that "
            f"about {100 * (grows - missing) // grows} % of these inputs fit."
        )
    elif fixed <= budget_bytes:
        lines.append(
            f"A smaller batch alone does not help: {format_bytes(grows)} of the peak grow with it, and "
            f"{format_bytes(missing)} are missing."
        )
    if parts.phase == "optimizer" and parts.transient_bytes > SMALL * missing:
        lines.append(
            f"The peak stands in the optimizer's own step, which no plan changes: its temporaries are "
            f"{format_bytes(parts.transient_bytes)}."
        )
    if parts.output_bytes > SMALL * missing:
        lines.append(
            f"Return less, or let go of outputs before backward: those that the caller holds are "
            f"{format_bytes(parts.output_bytes)}."
        )
    return lines
