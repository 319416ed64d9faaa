"""A joint step as the problem that solvers and judge know, and what each of its candidates runs again.

step    0 … n-1                    n+2k                  n+2k+1
        operator of forward        replays before it     operator k of backward
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..solvers.deadline import NEVER, Deadline
from ..solvers.problem import Addition, Call, Candidate, Hold, Problem, Save, Step, Tensor
from .regions import regions, ways
from .step import JointStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A joint step as a problem.

    Attributes:
        problem: the problem.
        again: for each of its candidates the operators of forward that run again, by index.
        notes: what there was no time for, in words.
    """

    problem: Problem
    again: tuple[frozenset[int], ...]
    notes: tuple[str, ...] = ()

    def chosen(self, candidates: Collection[int]) -> frozenset[int]:
        """Return the operators that run again under a choice of candidates."""
        return frozenset(i for candidate in candidates for i in self.again[candidate])


def state(step: JointStep, *, static_bytes: int = 0, deadline: Deadline = NEVER) -> Stated:
    """State a joint step as a problem.

    Args:
        step: the step.
        static_bytes: allocated all the time: parameters, optimizer state.
        deadline: once it has passed, no further region is looked into.
    """
    n = len(step.forward)
    number = {s: i for i, s in enumerate(s for s in step.maker if s not in step.outputs and step.storage_bytes[s])}
    candidates, again, seen = list[Candidate](), list[frozenset[int]](), dict[object, list[frozenset[int]]]()
    notes: tuple[str, ...] = ()
    for begin, end in regions(step):
        if deadline.passed:
            notes = ("time did not suffice to look into all parts of forward",)
            break
        deadline.tell("%d ways to recompute found", len(candidates))
        signature = _signature_of_region(step, begin, end)
        if signature not in seen:
            seen[signature] = ways(step, begin, end, deadline)
        for way in seen[signature]:
            chosen = frozenset(begin + i for i in way)
            made = _candidate(step, begin, end, chosen, number)
            if made is not None:
                candidates.append(made)
                again.append(chosen)
    operators = (
        Call(name=f"{each.module or 'the model'}/{each.name}", parent=0, stop=i + 2, function=True)
        for i, each in enumerate(step.forward)
    )
    problem = Problem(
        steps=_steps(step, static_bytes),
        calls=(Call(name="", parent=-1, stop=n + 1), *operators),
        tensors=tuple(_tensor(step, storage) for storage in number),
        candidates=tuple(candidates),
    )
    return Stated(problem=problem, again=tuple(again), notes=notes)


def _signature_of_region(step: JointStep, begin: int, end: int) -> object:
    """Return the signature of a region. Regions with equal signatures have the same ways, which are found once."""
    outside: dict[int, int] = {}

    def look(storage: int) -> tuple[object, ...]:
        i = step.maker[storage]
        place = i - begin if i >= begin else -1 - outside.setdefault(storage, len(outside))
        fused = storage in step.fused, storage in step.fused_again
        return place, step.storage_bytes[storage], storage in step.backward_reads, step.leaves(storage, end), fused

    return tuple(
        (each.seconds, each.kept, each.scratch_bytes, tuple(map(look, each.reads)), tuple(map(look, each.makes)))
        for each in step.forward[begin:end]
    )


def _until(step: JointStep, storage: int) -> int:
    """Return the step until which backward itself reads a storage of forward; 0 where it does not."""
    places = step.backward_reads.get(storage)
    return len(step.forward) + 2 * places[-1] + 2 if places else 0


def _tensor(step: JointStep, storage: int) -> Tensor:
    """State a storage of forward, which candidates may drop or hold. What crosses graphs is not dropped."""
    i, until = step.maker[storage], _until(step, storage)
    if storage in step.crossing:
        return Tensor(bytes=step.storage_bytes[storage], free_step=max(len(step.forward), until))
    saves = (Save(i + 1, until),) if until else ()
    free_step = i if storage in step.fused else step.last_read[storage] + 1
    return Tensor(bytes=step.storage_bytes[storage], free_step=free_step, saves=saves)


def _steps(step: JointStep, static_bytes: int) -> tuple[Step, ...]:
    """Return the steps, with the bytes that no decision changes."""
    n, m = len(step.forward), len(step.backward)
    change = [static_bytes] + [0] * (n + 2 * m)

    def stands(begin: int, end: int, storage: int) -> None:
        change[begin] += step.storage_bytes[storage]
        change[end] -= step.storage_bytes[storage]

    for storage, i in step.maker.items():
        end = n + 2 * m if storage in step.outputs else _tensor(step, storage).free_step
        stands(i, end, storage)
    last = {s: k for k, each in enumerate(step.backward) for s in (*each.makes, *each.reads)}
    for k, operator in enumerate(step.backward):
        for storage in operator.makes:
            end = n + 2 * m if storage in step.gradients else n + 2 * last[storage] + 2
            stands(n + 2 * k + 1, end, storage)
    names = [(f"forward of {each.module or 'the model'} ({each.name})", each.scratch_bytes) for each in step.forward]
    for each in step.backward:
        where = f"backward of {each.module or 'the model'} ({each.name})"
        names += [(f"replays before {where}", 0), (where, each.scratch_bytes)]
    found, level = [], 0
    for (name, scratch_bytes), difference in zip(names, change, strict=False):
        level += difference
        found.append(Step(name=name, base_bytes=level + scratch_bytes))
    return tuple(found)


def _candidate(
    step: JointStep, begin: int, end: int, again: frozenset[int], number: Mapping[int, int]
) -> Candidate | None:
    """State what it means to run some operators of a region again; None where backward needs none of them."""
    bursts = step.bursts(again)
    if not bursts:
        return None
    runs = [i for _, burst in bursts for i in burst]
    last, holds = _lives(step, bursts)
    holds = {storage: until for storage, until in holds.items() if storage in number}
    for storage in (storage for i in range(begin, end) if i not in again for storage in step.forward[i].makes):
        if storage in number and (until := _until(step, storage)):
            holds[storage] = max(holds.get(storage, 0), until)
    # What nobody else holds may go within the last replay that reads it: it counts there, and is held until then.
    own = {storage for i in range(begin, end) for storage in step.forward[i].makes if step.last_read[storage] < end}
    replays = {len(step.forward) + 2 * k + 1 for k, _ in bursts}
    ending = {storage: until - 1 for storage, until in holds.items() if storage in own and until in replays}
    holds |= ending
    return Candidate(
        name=f"{_within(step, begin, end)}, {len(runs)} of {end - begin} operators",
        start=begin + 1,
        stop=end + 1,
        length=1,
        recompute_seconds=sum(step.forward[i].seconds for i in runs),
        holds=tuple(Hold(number[storage], until) for storage, until in sorted(holds.items())),
        additions=tuple(_additions(step, bursts, last | ending, ending)),
        partial=True,
    )


def _lives(step: JointStep, bursts: list[tuple[int, list[int]]]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the step that reads last what replays make, and until when what they read of others is held."""
    n, holds = len(step.forward), dict[int, int]()
    made = {storage for _, burst in bursts for i in burst for storage in step.forward[i].makes}
    last = {storage: n + 2 * step.backward_reads[storage][-1] + 1 for storage in made & step.backward_reads.keys()}
    for k, burst in bursts:
        for storage in (storage for i in burst for storage in step.forward[i].reads):
            lives, until = (last, n + 2 * k) if storage in made else (holds, n + 2 * k + 1)
            lives[storage] = max(lives.get(storage, 0), until)
    return last, holds


def _additions(
    step: JointStep, bursts: list[tuple[int, list[int]]], last: Mapping[int, int], ending: Mapping[int, int]
) -> list[Addition]:
    """Return the bytes that replays hold: the most within each, and what stands from then on until it is read.

    Args:
        step: the step.
        bursts: the replays.
        last: by storage that they make or end, the step that reads it last.
        ending: by storage of forward that goes within a replay, the step of that replay.
    """
    n, found = len(step.forward), list[Addition]()
    inherited: dict[int, dict[int, int]] = {n + 2 * k: {} for k, _ in bursts}
    for storage, at in ending.items():
        inherited[at][storage] = step.storage_bytes[storage]
    for k, burst in bursts:
        at, new = n + 2 * k, dict(inherited[n + 2 * k])
        level = top = sum(new.values())
        reads = {s: t for t, i in enumerate(burst) for s in (*step.forward[i].makes, *step.forward[i].reads)}
        for t, i in enumerate(burst):
            for storage in step.forward[i].makes:
                new[storage] = step.again_bytes(storage)
                level += new[storage]
            top = max(top, level + step.forward[i].scratch_bytes)
            for storage in [s for s in new if reads[s] == t and last.get(s, at) <= at]:
                level -= new.pop(storage)
        found.append(Addition(top, at, at + 1))
        for storage, size in new.items():
            later = inherited.get(last[storage])
            if later is not None:
                later[storage] = size
            found.append(Addition(size, at + 1, last[storage] + (later is None)))
    return found


def _within(step: JointStep, begin: int, end: int) -> str:
    """Name the module that a region lies in, or the modules that it begins and ends in."""
    first, final = step.forward[begin].module or "the model", step.forward[end - 1].module or "the model"
    return first if first == final else f"{first} … {final}"
