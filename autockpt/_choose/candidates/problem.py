"""From replays to a problem: the clock is cut where something that a decision changes begins or ends."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ...solvers.judge import course
from ...solvers.problem import Addition, Candidate, Hold, Problem, Save, Step, Tensor
from ..index.profile_index import Index, Ints
from ..replay_cost.effects import PlannedReplay


def state_problem(index: Index, replays: Sequence[PlannedReplay]) -> tuple[Problem, tuple[int, ...], tuple[int, ...]]:
    """State each replay as a candidate; return the tick at which each step begins, and each tensor's index, as well."""
    saves, ticks = index.profile.saves, index.profile.ticks
    tensors = sorted({t for t in saves.tensor if t >= 0} | {t for each in replays for t, _ in each.held})
    cuts = {0, *saves.release, *index.natural[tensors].tolist()}
    for each in replays:
        cuts.update([start for _, start, _ in each.additions], [until for _, _, until in each.additions])
        if each.move is not None:  # what leaves the device is held until a call has ended, where nothing else may
            cuts.update([until for _, until in each.held])
    edges = tuple(sorted(cut for cut in cuts if cut < ticks))
    steps = base_steps(index, edges)
    step_of = [len(steps)] * (ticks + 1)  # a list is read twice as fast as a dictionary
    for number, edge in enumerate(edges):
        step_of[edge] = number
    place = {tensor: i for i, tensor in enumerate(tensors)}
    by_tensor = _saves(index, replays, step_of)
    problem = Problem(
        steps=steps,
        calls=index.stated,
        tensors=tuple(
            Tensor(bytes=int(index.bytes[t]), free_step=step_of[index.natural[t]], saves=tuple(by_tensor[t]))
            for t in tensors
        ),
        candidates=tuple(_candidate(each, place, step_of) for each in replays),
    )
    return problem, edges, tuple(tensors)


def _saves(index: Index, replays: Sequence[PlannedReplay], step_of: Sequence[int]) -> dict[int, list[Save]]:
    """Return who saves each tensor, and until which step."""
    saves = index.profile.saves
    # What a function saves that no segment runs again by itself belongs to the call around it.
    alone = {member for each in replays for member in each.members}
    by_tensor: dict[int, list[Save]] = defaultdict(list)
    for tensor, node, release in zip(saves.tensor, index.save_nodes, saves.release, strict=True):
        call = node if node in alone or not index.is_function(node) else index.nodes[node].parent
        by_tensor[tensor].append(Save(call=call, until=step_of[release]))
    return by_tensor


def _candidate(replay: PlannedReplay, place: Mapping[int, int], step_of: Sequence[int]) -> Candidate:
    """State one replay in steps."""
    first, last = replay.segment.calls[0], replay.segment.calls[-1]
    name = first if first == last else f"{first} … {last}"
    return Candidate(
        name=f"{name} but for {len(replay.alone)} functions" if replay.alone else name,
        start=replay.members[0],
        stop=replay.stop,
        length=len(replay.members),
        partial=bool(replay.alone) or replay.segment.goes_in_parts,
        multiplies=replay.multiplies,
        recompute_seconds=replay.segment.recompute_seconds,
        holds=tuple([Hold(place[t], step_of[tick]) for t, tick in replay.held]),
        additions=tuple([Addition(size, step_of[start], step_of[until]) for size, start, until in replay.additions]),
    )


def held_until(index: Index) -> Ints:
    """For each tensor, the tick until which it stands naturally or for a save."""
    held: Ints = index.natural.copy()
    saved = np.array(index.profile.saves.tensor, np.int64)
    np.maximum.at(held, saved[saved >= 0], np.array(index.profile.saves.release, np.int64)[saved >= 0])
    return held


def levels(length: int, start: Ints, until: Ints, sizes: Ints) -> Ints:
    """Add up sizes over ``[start, until)``; what ends before it begins counts nothing."""
    return course(length, np.minimum(start, length), np.minimum(np.maximum(start, until), length), sizes)


def base_level(index: Index) -> Ints:
    """Level at each tick of everything that no decision changes."""
    profile, held = index.profile, held_until(index)
    # What stands longer than that is held by something that is no save: not ours to free.
    level = levels(profile.ticks, held, np.array(profile.tensors.death, np.int64), index.bytes)
    level += levels(profile.ticks, index.birth, index.natural, index.bytes) + profile.static.total_bytes
    return level


def top_ticks(level: Ints, edges: Sequence[int]) -> list[int]:
    """For each step, the tick at which a level is highest."""
    stops = [*edges[1:], len(level)]
    return [edge + int(np.argmax(level[edge:stop])) for edge, stop in zip(edges, stops, strict=True)]


def base_steps(index: Index, edges: Sequence[int]) -> tuple[Step, ...]:
    """Highest base level between the edges, and in the optimizer step: everything that no decision changes."""
    profile, level = index.profile, base_level(index)
    tops = top_ticks(level, edges)
    names = _names(index, tops)
    steps = [Step(name=name, base_bytes=int(level[top])) for name, top in zip(names, tops, strict=True)]
    if profile.optimizer:
        steps.append(Step(name="optimizer step", base_bytes=int(level[-1]) + profile.optimizer_step_bytes))
    return tuple(steps)


def _names(index: Index, tops: Sequence[int]) -> list[str]:
    """Say for each step where its highest level stands."""
    saves, calls = index.profile.saves, index.profile.calls
    backward = sorted(zip(saves.release, saves.call, strict=True))
    ticks = [tick for tick, _ in backward]
    names = []
    for top in tops:
        if index.profile.forward_until(top) >= 0:
            names.append(f"forward of {index.call_at(top)}")
        elif (i := bisect.bisect_left(ticks, top)) < len(backward):
            names.append(f"backward of {calls[backward[i][1]].key}")
        else:
            names.append("the end of backward")
    return names
