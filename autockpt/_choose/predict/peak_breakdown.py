"""What the lowest reachable peak consists of, in which step it is reached, and what would lower it. No torch."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator

import numpy as np

from ..._data.profile import Profile
from ..._data.text.keys import label
from ..._data.timeline import PeakParts
from ...solvers import simulate
from ...solvers.common import Plan as Chosen
from ...solvers.registry import SEARCHING
from ...solvers.units import format_like
from ..candidates import Candidates
from ..index.profile_index import Index
from .timeline import split_levels

ELSEWHERE, LOSS, LOOP = "by something in the model", "by the loss", "by what runs before the model"
"""Who holds a tensor of forward: an unknown holder in the model, code that runs after the model, code that runs before
it."""

UNPROFITABLE = "no lower plan was found that recomputes that too"
OF_THE_WHOLE = "saved by the model's own forward or by the loss, outside of any call that can run again"
"""Why a call is kept that could run again, and why what no call around could is."""

MOST_NAMES = 2

SMALL = 0.05
"""A part smaller than this share of the missing bytes is not worth advice."""


def peak_parts(candidates: Candidates, chosen: Chosen) -> PeakParts:
    """Split the peak of a plan into parts, at the first step that reaches it."""
    timeline, profile = split_levels(candidates, chosen), candidates.index.profile
    at = timeline.steps[timeline.peak]
    whole = ("parameter_bytes", "buffer_bytes", "optimizer_bytes", "input_bytes", "other_bytes")
    there = ("gradient", "output", "activation", "boundary", "restored", "transient")
    kept = _kept(candidates, chosen, timeline.peak)
    return PeakParts(
        step=at.name,
        phase=at.phase,
        op=_op(profile, at.top_tick),
        segment=_segment(candidates, chosen, timeline.peak) if at.restored_bytes else "",
        holders=_holders(candidates.index, at.top_tick, at.output_bytes),
        kept=_kept_by(candidates, kept),
        **{part: getattr(profile.static, part) for part in whole},
        **{f"{part}_bytes": getattr(at, f"{part}_bytes") for part in there},
    )


def _holders(index: Index, tick: int, output_bytes: int) -> tuple[tuple[str, int], ...]:
    """Say who holds, at a tick, tensors that forward made and did not return; with bytes, the most first.

    Empty if they add up to more than `output_bytes`, of which they should be a part.
    """
    profile = index.profile
    standing = (
        (index.birth <= tick)
        & (index.birth < profile.forward_ticks)
        & (index.natural > max(tick, profile.forward_ticks))
    )
    roots = [call for call in profile.calls if call.parent < 0]
    returned = {tensor for call in roots for tensor in call.outputs}
    known = profile.refused("tensor")
    found: dict[str, int] = {}
    for tensor in np.flatnonzero(standing).tolist():
        if tensor not in returned:
            inside = any(call.enter <= index.birth[tensor] < call.exit for call in roots)
            outside = LOOP if index.birth[tensor] < roots[0].enter else LOSS
            who = known.get(tensor, ELSEWHERE) if inside else outside
            found[who] = found.get(who, 0) + index.bytes_of[tensor]
    return _largest(found) if sum(found.values()) <= output_bytes else ()


def _kept(candidates: Candidates, chosen: Chosen, step: int) -> set[int]:
    """Tensors, by index in the profile, that are alive in a step because kept calls saved them."""
    judged, tensors = simulate(candidates.problem, chosen), candidates.problem.tensors
    places = enumerate(zip(candidates.tensors, tensors, judged.saved_until, strict=True))
    return {number for _, (number, tensor, until) in places if tensor.free_step <= step < until}


def _kept_by(candidates: Candidates, kept: set[int]) -> tuple[tuple[str, int], ...]:
    """Say which calls saved what is kept, and why they are kept."""
    index, saves, profile = candidates.index, candidates.index.profile.saves, candidates.index.profile
    innermost: dict[int, tuple[str, str]] = {}  # by tensor: who saved it, and why that is kept
    for tensor, call in zip(saves.tensor, saves.call, strict=True):
        if tensor in kept:
            innermost.setdefault(tensor, (profile.calls[call].key, UNPROFITABLE if call else OF_THE_WHOLE))
    for call, reason in candidates.refused:  # in pre-order, so the innermost is last
        for save in index.saves_of((call,)):
            if saves.tensor[save] in kept:
                innermost[saves.tensor[save]] = index.nodes[call].key, reason
    found: dict[str, int] = {}
    calls: dict[str, dict[str, int]] = {}
    for tensor, (key, reason) in innermost.items():
        found[reason] = found.get(reason, 0) + index.bytes_of[tensor]
        of_reason = calls.setdefault(reason, {})
        of_reason[key] = of_reason.get(key, 0) + index.bytes_of[tensor]
    return tuple((f"{_names(calls[reason])} ({reason})", size) for reason, size in _largest(found))


def _names(calls: dict[str, int]) -> str:
    """Name the calls that hold most."""
    named = sorted(calls, key=lambda call: -calls[call])[:MOST_NAMES]
    shown = ", ".join(map(label, named))
    return shown + (f" and {len(calls) - MOST_NAMES} more" if len(calls) > MOST_NAMES else "")


def _largest(found: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(found.items(), key=lambda each: -each[1]))


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
    parts: PeakParts,
    budget_bytes: int,
    *,
    unpinned_bytes: int | None = None,
    solver: str = "auto",
    asked: object = None,
) -> list[str]:
    """Say what would help if even the lowest peak is above the budget, surest first.

    Only advice that the figures support is given: to lift pins, for instance, only if the lowest peak without them is
    lower. Bytes are written in the unit of `asked`.
    """
    in_unit = functools.partial(format_like, amount=asked)
    minimum, budget = parts.peak_bytes, in_unit(budget_bytes)
    missing = minimum - budget_bytes
    lines = [f"Ask for at least {minimum:,} bytes, or for 'lowest': the error carries a plan with that peak."]
    if parts.parameter_bytes > budget_bytes:
        alone = f"The parameters alone, {in_unit(parts.parameter_bytes)}, are above the budget of {budget}"
        return [*lines, f"{alone}: only fewer or narrower ones would fit."]
    fixed = parts.parameter_bytes + parts.buffer_bytes + parts.optimizer_bytes
    if fixed > budget_bytes:
        known = f"{in_unit(fixed)} of parameters, buffers and optimizer state"
        lines.append(f"Before any batch there are {known}, which is above the budget of {budget}: no batch fits.")
    if unpinned_bytes is not None and unpinned_bytes < minimum:
        enough = "fits" if unpinned_bytes <= budget_bytes else f"reaches {in_unit(unpinned_bytes)}"
        lines.append(f"Lift pins: without them the same solver {enough}.")
    if solver not in SEARCHING:
        lines.append(f"Solver {solver!r} looks at few plans: 'auto' may get lower.")
    lines += _lighter_optimizer(parts, missing, in_unit)
    lines += [_smaller_batch(parts, missing, in_unit)] if fixed <= budget_bytes else []
    if parts.phase == "optimizer" and parts.transient_bytes > SMALL * missing:
        size = in_unit(parts.transient_bytes)
        lines.append(f"The peak stands in the optimizer's own step, which no plan changes: its temporaries are {size}.")
    if parts.callers_bytes > SMALL * missing:
        size = in_unit(parts.callers_bytes)
        lines.append(f"Return less, or let go of outputs before backward: those that the caller holds are {size}.")
    lines += [_let_go(who, in_unit(size)) for who, size in parts.holders if who != LOSS and size > SMALL * missing]
    return lines


def _lighter_optimizer(parts: PeakParts, missing: int, in_unit: Callable[[int], str]) -> Iterator[str]:
    """Say how many of the missing bytes an optimizer with a smaller state would save."""
    if parts.optimizer_bytes >= missing:
        left = in_unit(parts.optimizer_bytes - missing)
        yield f"Take an optimizer that holds less: with a state of at most {left} it fits."
    elif parts.optimizer_bytes > SMALL * missing:
        share = f"{parts.optimizer_bytes / missing:.0%}"
        yield f"An optimizer without state would spare {share} of the {in_unit(missing)} missing."


def _smaller_batch(parts: PeakParts, missing: int, in_unit: Callable[[int], str]) -> str:
    """Say how many of the missing bytes a smaller batch would save."""
    grows = parts.input_bytes + parts.output_bytes + parts.activation_bytes + parts.boundary_bytes
    grows += parts.restored_bytes + (parts.transient_bytes if parts.phase != "optimizer" else 0)
    grown = f"{in_unit(grows)} of the peak grow with"
    if grows <= missing:
        return f"A smaller batch alone does not help: {grown} it, and {in_unit(missing)} are missing."
    share = 100 * (grows - missing) // grows
    return f"Take a smaller batch or shorter sequences: {grown} them, so about {share} % of these inputs fit."


def _let_go(who: str, size: str) -> str:
    """Say what to do about tensors of forward that `who` holds."""
    held = f"{size} are held {who}"
    if who == ELSEWHERE:
        return f"{held} (an attribute, a list, a cache): let go of them before backward."
    if who == LOOP:
        return f"{held}: if it is another model, plan both together, autockpt.apply([one, other], budget=...)."
    return (
        f"{held}, where autograd does not see them: give them to ctx.save_for_backward, so that they can be recomputed."
    )
