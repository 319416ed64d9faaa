"""The predicted memory of a step under a plan, split by what it is. No torch.

    level  = static + gradients + outputs + activations + boundaries + restored + transients
    step     the judge's: nothing that the plan decides begins or ends inside one, and the level is its highest

The levels are the judge's to the byte; the split is read from the profile at the tick where each of them stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._data.plan import Plan
from .._data.profile import Profile
from .._data.timeline import MemoryStep, MemoryTimeline
from ..solvers.problem import Problem
from .candidates import Candidates
from .candidates.book import Book, Ints
from .candidates.planned import find_planned
from .candidates.steps import base_level, held_until, top_ticks


def predict_timeline(profile: Profile, plan: Plan) -> MemoryTimeline:
    """Predict the memory of the recorded step under a plan.

    Args:
        profile: the recorded step.
        plan: the plan; one made from this profile peaks here where it says, to the byte.

    Returns:
        The timeline, static bytes included.

    Raises:
        InvalidProblem: two segments overlap.
        NotApplicable: the plan does not fit the recorded step.

    Exact for what the judge knows; O(tensors + saves + ticks).
    """
    planned = find_planned(profile, plan)
    return split_levels(profile, planned, range(len(planned.runs)))


def split_levels(profile: Profile, candidates: Candidates, chosen: Sequence[int]) -> MemoryTimeline:
    """Split the judge's level in each step by what stands there.

    Args:
        profile: what the candidates were found in.
        candidates: the candidates.
        chosen: indices of those that are recomputed.

    Returns:
        The timeline.
    """
    problem, book = candidates.problem, Book(profile)
    tops = top_ticks(base_level(profile, book), candidates.edges)
    after = len(problem.steps) - len(tops)  # of the optimizer, where the clock has ended
    saved, needed = _held(problem, chosen)
    free = np.array([tensor.free_step for tensor in problem.tensors], np.int64)
    sizes = np.array([tensor.bytes for tensor in problem.tensors], np.int64)
    # A tensor counts as what holds it after its natural life from its birth on.
    later = {
        "activation": [t for t, one, start in zip(candidates.tensors, saved, free, strict=True) if one > start],
        "boundary": [
            t
            for t, one, other, start in zip(candidates.tensors, needed, saved, free, strict=True)
            if one > start >= other
        ],
    }
    base = {name: _at(level, tops, after) for name, level in _base(profile, book, later).items()}
    n_steps = len(problem.steps)
    kept = _between(n_steps, free, saved, sizes)
    held = _between(n_steps, np.maximum(free, saved), needed, sizes)
    restored = np.zeros(n_steps, np.int64)
    for c in chosen:
        for addition in problem.candidates[c].additions:
            begins_in_forward = addition.start < len(tops) and tops[addition.start] < profile.forward_ticks
            into = held if begins_in_forward else restored  # a snapshot waits from forward on
            into[addition.start : addition.until] += addition.bytes
    static_bytes = profile.static.total_bytes - profile.static.gradient_bytes
    steps = []
    for i, step in enumerate(problem.steps):
        top = tops[i] if i < len(tops) else profile.ticks
        known = {name: int(level[i]) for name, level in base.items()}
        known["gradient"] += profile.static.gradient_bytes
        steps.append(
            MemoryStep(
                name=step.name,
                phase="optimizer" if i >= len(tops) else "forward" if top < profile.forward_ticks else "backward",
                tick=candidates.edges[i] if i < len(tops) else profile.ticks,
                top_tick=top,
                static_bytes=static_bytes,
                gradient_bytes=known["gradient"],
                output_bytes=known["output"],
                activation_bytes=known["activation"] + int(kept[i]),
                boundary_bytes=known["boundary"] + int(held[i]),
                restored_bytes=int(restored[i]),
                transient_bytes=step.base_bytes - static_bytes - sum(known.values()),
            )
        )
    levels = [step.level_bytes for step in steps]
    return MemoryTimeline(model=profile.model, ticks=profile.ticks, peak=levels.index(max(levels)), steps=tuple(steps))


def _held(problem: Problem, chosen: Sequence[int]) -> tuple[Ints, Ints]:
    """For each tensor, the step until which kept calls hold it, and that until which replays need it."""
    covered = np.zeros(len(problem.calls), np.bool_)
    needed = np.zeros(len(problem.tensors), np.int64)
    for c in chosen:
        candidate = problem.candidates[c]
        covered[candidate.start : candidate.stop] = True
        for hold in candidate.holds:
            needed[hold.tensor] = max(needed[hold.tensor], hold.until)
    saves = [[save.until for save in tensor.saves if not covered[save.call]] for tensor in problem.tensors]
    return np.array([max(until, default=0) for until in saves], np.int64), needed


def _base(profile: Profile, book: Book, later: dict[str, list[int]]) -> dict[str, Ints]:
    """Level at each tick of what is neither static, nor moved by a decision, nor transient."""
    held = held_until(profile, book)
    death = np.maximum(np.array(profile.tensors.death, np.int64), book.natural)
    in_forward = book.birth < profile.forward_ticks
    gradient = ~in_forward & (death >= profile.ticks)
    output = in_forward & (book.natural > profile.forward_ticks)
    found: dict[str, Ints] = {}
    for name, tensors in later.items():
        chosen = np.zeros(len(book.bytes), np.bool_)
        chosen[tensors] = True
        chosen &= in_forward & ~output
        found[name] = _between(profile.ticks, book.birth[chosen], book.natural[chosen], book.bytes[chosen])
    for name, which, late in (("gradient", gradient, gradient), ("output", output, in_forward)):
        found[name] = _between(profile.ticks, book.birth[which], book.natural[which], book.bytes[which])
        late = late & (death > held)
        found[name] += _between(profile.ticks, held[late], death[late], book.bytes[late])
    return found


def _between(length: int, start: Ints, until: Ints, sizes: Ints) -> Ints:
    """Add up sizes over ``[start, until)``; what ends before it begins counts nothing."""
    change = np.zeros(length + 1, np.int64)
    until = np.maximum(start, until)
    np.add.at(change, np.minimum(start, length), sizes)
    np.add.at(change, np.minimum(until, length), -sizes)
    level: Ints = np.cumsum(change)[:-1]
    return level


def _at(level: Ints, tops: Sequence[int], after: int) -> Ints:
    """A level by ticks at the top of each step, the end of the clock for those after it."""
    return level[[*tops, *[len(level) - 1] * after]]
