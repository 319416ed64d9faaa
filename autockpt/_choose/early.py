"""Which replays may run before the gradient is there that their backward begins with. No torch.

                 backward begins          the segment is read
    as planned   │                        ▒▒░░░░░░░              ▒ the replay's own peak, ░ what it has restored
    early      ▒▒░░░░░░░░░░░░░░░░░░░░░░░░░░░░

A stage of a pipeline waits there for a gradient. A replay that runs meanwhile costs no seconds, but what it restores
stands earlier.
"""

from __future__ import annotations

import numpy as np

from .._data.plan import Plan, Segment
from .._data.profile import Profile
from ..solvers import simulate
from .candidates import Candidates
from .candidates.from_plan import find_planned
from .candidates.problem import base_level, levels
from .index.profile_index import Ints
from .replay_cost.effects import PlannedReplay


def find_early(profile: Profile, plan: Plan) -> frozenset[int]:
    """Return the segments, by number, whose replays may run just before their backward begins.

    The predicted peak of the step is no higher for them. Each backward has one at most: the one that it needs first.
    Left out are replays that move tensors or go in parts, and all replays of a step in which a backward keeps its graph
    or runs inside another. O(tensors + saves + ticks).
    """
    candidates = find_planned(profile, plan)
    passes = candidates.index.passes
    if profile.nested_ticks or any(passes.keeping):
        return frozenset()
    first: dict[int, PlannedReplay] = {}  # by backward
    for replay in candidates.replays:
        number = passes.at(replay.tick)
        if number not in first or replay.tick < first[number].tick:
            first[number] = replay
    level, most_bytes = _level(candidates)
    begins = (profile.forward_ticks, *profile.backward_ticks)
    numbers = {segment.calls: number for number, segment in enumerate(plan.segments) if not _is_special(segment)}
    able = [(number, each) for number, each in first.items() if each.segment.calls in numbers]
    return frozenset(
        numbers[each.segment.calls] for number, each in able if _fits(each, begins[number], level, most_bytes)
    )


def _is_special(segment: Segment) -> bool:
    return segment.offload is not None or segment.goes_in_parts


def _fits(replay: PlannedReplay, begins: int, level: Ints, most_bytes: int) -> bool:
    """Whether a replay may run before tick `begins`, at which its backward begins.

    `level` is the plan's level at each tick without that. No level may come to exceed `most_bytes`.
    """
    own_bytes = sum(size for size, start, _ in replay.additions if start == replay.tick)
    restored_bytes = sum(size for size, start, _ in replay.additions if start == replay.tick + 1)
    if own_bytes == 0:  # it never runs
        return False
    # A wait lies between two events of the allocator: the one before the tick, and the tick's own.
    before, until_read = level[begins - 1 : min(begins + 1, replay.tick)], level[begins + 1 : replay.tick]
    return bool(before.max() + own_bytes <= most_bytes and until_read.max(initial=0) + restored_bytes <= most_bytes)


def _level(candidates: Candidates) -> tuple[Ints, int]:
    """Return the level at each tick if all candidates are recomputed, and the judge's peak."""
    index, problem = candidates.index, candidates.problem
    judged, ticks = simulate(problem, range(len(candidates.replays))), index.profile.ticks
    ends = np.array([*candidates.edges, *[ticks] * (len(problem.steps) - len(candidates.edges) + 1)], np.int64)
    held = ends[np.maximum(np.array(judged.saved_until, np.int64), np.array(judged.needed_until, np.int64))]
    tensors = np.array(candidates.tensors, np.int64)
    level = base_level(index) + levels(ticks, index.natural[tensors], held, index.bytes[tensors])
    additions = np.array([each for replay in candidates.replays for each in replay.additions], np.int64).reshape(-1, 3)
    return level + levels(ticks, additions[:, 1], additions[:, 2], additions[:, 0]), judged.peak_bytes
