"""The predicted memory of a step under a plan, split by what it is. No torch.

    level  = static + gradients + outputs + activations + boundaries + restored + transients
    step     as the judge has them: the plan allocates and frees nothing inside one; the level is the highest in it

Each level is the judge's to the byte. It is split by what the profile says of the tick at which it is reached.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.timeline import MemoryStep, MemoryTimeline, Phase
from ...solvers import simulate
from ..candidates import Candidates
from ..candidates.from_plan import find_planned
from ..candidates.problem import base_level, held_until, levels, top_ticks
from ..index.profile_index import Index, Ints


def predict_timeline(profile: Profile, plan: Plan) -> MemoryTimeline:
    """Predict the memory of the recorded step under a plan, static bytes included; see `Plan.timeline`.

    As exact as the judge; O(tensors + saves + ticks).
    """
    planned = find_planned(profile, plan)
    return split_levels(planned, range(len(planned.replays)))


def split_levels(candidates: Candidates, chosen: Sequence[int]) -> MemoryTimeline:
    """Split the judge's level in each step by the kinds of tensors that are alive there."""
    problem, index = candidates.problem, candidates.index
    profile = index.profile
    tops = top_ticks(base_level(index), candidates.edges)
    judged = simulate(problem, chosen)
    saved, needed = np.array(judged.saved_until, np.int64), np.array(judged.needed_until, np.int64)
    free = np.array([tensor.free_step for tensor in problem.tensors], np.int64)
    sizes = np.array([tensor.bytes for tensor in problem.tensors], np.int64)
    # What holds a tensor after its natural life decides its kind. It counts as that kind from its birth on.
    tensors = np.array(candidates.tensors, np.int64)
    later = {"activation": tensors[saved > free], "boundary": tensors[(needed > free) & (saved <= free)]}
    at = [*tops, *[profile.ticks - 1] * (len(problem.steps) - len(tops))]  # steps of the optimizer: the last tick
    base = {name: level[at] for name, level in _base(index, later).items()}
    n_steps = len(problem.steps)
    kept = levels(n_steps, free, saved, sizes)
    held = levels(n_steps, saved, needed, sizes)
    restored = _add_replays(candidates, chosen, tops, held)
    static_bytes = profile.static.total_bytes - profile.static.gradient_bytes
    steps = []
    for i, step in enumerate(problem.steps):
        top = tops[i] if i < len(tops) else profile.ticks
        phase: Phase = "optimizer" if i >= len(tops) else "forward" if profile.forward_until(top) >= 0 else "backward"
        known = {name: int(level[i]) for name, level in base.items()}
        known["gradient"] += profile.static.gradient_bytes
        steps.append(
            MemoryStep(
                name=step.name,
                phase=phase,
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
    return MemoryTimeline(model=profile.model, ticks=profile.ticks, peak=judged.peak_step, steps=tuple(steps))


def _add_replays(candidates: Candidates, chosen: Sequence[int], tops: Sequence[int], held: Ints) -> Ints:
    """Return the bytes that replays restore, by step. What they hold from forward on (snapshots) is added to `held`."""
    restored, profile = np.zeros_like(held), candidates.index.profile
    for c in chosen:
        for addition in candidates.problem.candidates[c].additions:
            begins_in_forward = addition.start < len(tops) and profile.forward_until(tops[addition.start]) >= 0
            into = held if begins_in_forward else restored
            into[addition.start : addition.until] += addition.bytes
    return restored


def _base(index: Index, later: dict[str, Ints]) -> dict[str, Ints]:
    """Level at each tick, by kind, of the lifetimes that no decision changes; static and transient bytes left out."""
    profile, held = index.profile, held_until(index)
    death = np.maximum(np.array(profile.tensors.death, np.int64), index.natural)
    in_forward = index.in_forward(index.birth)
    gradient = ~in_forward & (death >= profile.ticks)
    ends = [max(profile.forward_until(tick), 0) for tick in index.birth.tolist()]  # where the forward ends that made it
    output = in_forward & (index.natural > np.array(ends, np.int64))

    def level(which: npt.NDArray[np.bool_], start: Ints, until: Ints) -> Ints:
        return levels(profile.ticks, start[which], until[which], index.bytes[which])

    found: dict[str, Ints] = {}
    for name, tensors in later.items():
        which = np.zeros(len(index.bytes), np.bool_)
        which[tensors] = True
        found[name] = level(which & in_forward & ~output, index.birth, index.natural)
    found["gradient"] = level(gradient, index.birth, index.natural) + level(gradient, held, death)
    found["output"] = level(output, index.birth, index.natural) + level(in_forward, held, death)
    return found
