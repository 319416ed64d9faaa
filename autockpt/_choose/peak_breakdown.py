"""What the lowest peak that can be reached consists of, where it stands, and what would lower it. No torch."""

from __future__ import annotations

import bisect

from .._data.profile import Profile
from .._data.timeline import PeakParts
from ..solvers import format_bytes
from ..solvers.common import Plan as Chosen
from .candidates import Candidates
from .timeline import split_levels

SMALL = 0.05
"""Share of what is missing below which a part is no lever."""


def peak_parts(candidates: Candidates, chosen: Chosen) -> PeakParts:
    """Take the peak of a plan apart, at the first step in which it stands."""
    timeline, profile = split_levels(candidates, chosen), candidates.index.profile
    at = timeline.steps[timeline.peak]
    whole = ("parameter_bytes", "buffer_bytes", "optimizer_bytes", "input_bytes", "other_bytes")
    there = ("gradient", "output", "activation", "boundary", "restored", "transient")
    return PeakParts(
        step=at.name,
        phase=at.phase,
        op=_op(profile, at.top_tick),
        segment=_segment(candidates, chosen, timeline.peak) if at.restored_bytes else "",
        **{part: getattr(profile.static, part) for part in whole},
        **{f"{part}_bytes": getattr(at, f"{part}_bytes") for part in there},
    )


def _op(profile: Profile, tick: int) -> str:
    """Name the operator that made the tensor born at a tick of forward."""
    birth = profile.tensors.birth
    tensor = bisect.bisect_left(birth, tick)
    if profile.forward_until(tick) < 0 or tensor == len(birth) or birth[tensor] != tick:
        return ""
    return next((n for n, makes in zip(profile.ops.name, profile.ops.makes, strict=True) if tensor in makes), "")


def _segment(candidates: Candidates, chosen: Chosen, step: int) -> str:
    """Name the chosen candidate whose replay adds most to a step."""

    def added(c: int) -> int:
        return sum(a.bytes for a in candidates.problem.candidates[c].additions if a.start <= step < a.until)

    return candidates.problem.candidates[max(chosen, key=added)].name


def advise(
    parts: PeakParts, budget_bytes: int, *, unpinned_bytes: int | None = None, solver: str = "auto"
) -> list[str]:
    """Say what would help where even the lowest peak is above a budget, surest first; only what the figures bear out.

    Pins are a lever where the lowest peak without them is lower.
    """
    minimum, budget = parts.peak_bytes, format_bytes(budget_bytes)
    missing = minimum - budget_bytes
    lines = [f"Ask for at least {minimum:,} bytes, or for 'min': the error carries the plan that keeps to them."]
    if parts.parameter_bytes > budget_bytes:
        alone = f"The parameters alone, {format_bytes(parts.parameter_bytes)}, are above the budget of {budget}"
        return [*lines, f"{alone}: only fewer or narrower ones would fit."]
    fixed = parts.parameter_bytes + parts.buffer_bytes + parts.optimizer_bytes
    grows = parts.input_bytes + parts.output_bytes + parts.activation_bytes + parts.boundary_bytes
    grows += parts.restored_bytes + (parts.transient_bytes if parts.phase != "optimizer" else 0)
    grown, lacks = f"{format_bytes(grows)} of the peak grow with", format_bytes(missing)
    if fixed > budget_bytes:
        stands = f"{format_bytes(fixed)} of parameters, buffers and optimizer state"
        lines.append(f"What stands before the batch comes, {stands}, is above the budget of {budget}: no batch fits.")
    if unpinned_bytes is not None and unpinned_bytes < minimum:
        enough = "fits" if unpinned_bytes <= budget_bytes else f"reaches {format_bytes(unpinned_bytes)}"
        lines.append(f"Lift pins: without them the same solver {enough}.")
    if solver not in ("auto", "ilp"):
        lines.append(f"Solver {solver!r} looks at few plans: 'auto' may get lower.")
    if parts.optimizer_bytes >= missing:
        left = format_bytes(parts.optimizer_bytes - missing)
        lines.append(f"Take an optimizer that holds less: with a state of at most {left} it fits.")
    elif parts.optimizer_bytes > SMALL * missing:
        lines.append(
            f"An optimizer without state would spare {parts.optimizer_bytes / missing:.0%} of the {lacks} missing."
        )
    if fixed <= budget_bytes and grows > missing:
        share = 100 * (grows - missing) // grows
        lines.append(
            f"Take a smaller batch or shorter sequences: {grown} them, so about {share} % of these inputs fit."
        )
    elif fixed <= budget_bytes:
        lines.append(f"A smaller batch alone does not help: {grown} it, and {lacks} are missing.")
    if parts.phase == "optimizer" and parts.transient_bytes > SMALL * missing:
        size = format_bytes(parts.transient_bytes)
        lines.append(f"The peak stands in the optimizer's own step, which no plan changes: its temporaries are {size}.")
    if parts.output_bytes > SMALL * missing:
        size = format_bytes(parts.output_bytes)
        lines.append(f"Return less, or let go of outputs before backward: those that the caller holds are {size}.")
    return lines
