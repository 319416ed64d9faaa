"""Random problems in which decisions matter: nested calls, runs, shared boundaries, replays that cost memory."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from autockpt.solvers import (
    Addition,
    Call,
    Candidate,
    Hold,
    Problem,
    Save,
    Step,
    Tensor,
    simulate,
)
from autockpt.solvers.pins import coverable

from .exhaustive import minimum_bytes

Draw = st.DrawFn


@st.composite
def problems(
    draw: Draw, *, max_steps: int = 10, max_calls: int = 9, max_tensors: int = 8, max_entries: int = 1
) -> Problem:
    """A problem of at most `max_steps` steps; forward up to a middle step, backward after it.

    Up to `max_entries` candidates recompute the same calls, in different ways.
    """
    n_steps = draw(st.integers(2, max_steps))
    middle = draw(st.integers(1, n_steps - 1))
    calls = draw(_calls(max_calls))
    tensors = draw(st.lists(_tensors(len(calls), middle, n_steps), min_size=2, max_size=max_tensors))
    base = draw(st.lists(st.integers(0, 12), min_size=n_steps, max_size=n_steps))
    return Problem(
        steps=tuple(Step(name=f"step {i}", base_bytes=n) for i, n in enumerate(base)),
        calls=calls,
        tensors=tuple(tensors),
        candidates=tuple(
            _candidate(draw, run, calls, tensors, middle, n_steps)
            for run in draw(_runs(calls))
            for _ in range(draw(st.integers(1, max_entries)))
        ),
    )


@st.composite
def problems_and_budgets(draw: Draw, *, max_calls: int = 9, max_entries: int = 1) -> tuple[Problem, int]:
    """A problem and a budget: mostly between the lowest reachable peak and the plain peak, where choices matter."""
    problem = draw(problems(max_calls=max_calls, max_entries=max_entries))
    plain, lowest = simulate(problem, ()).peak_bytes, minimum_bytes(problem)
    return problem, max(1, draw(st.integers(lowest - 2, plain + 2) if draw(st.integers(0, 7)) else st.just(lowest)))


def scaled(problem: Problem, factor: int) -> Problem:
    """The same problem with all bytes multiplied."""
    replace = dataclasses.replace
    return replace(
        problem,
        steps=tuple(replace(step, base_bytes=factor * step.base_bytes) for step in problem.steps),
        tensors=tuple(replace(tensor, bytes=factor * tensor.bytes) for tensor in problem.tensors),
        candidates=tuple(
            replace(c, additions=tuple(a._replace(bytes=factor * a.bytes) for a in c.additions))
            for c in problem.candidates
        ),
    )


@st.composite
def _calls(draw: Draw, max_calls: int) -> tuple[Call, ...]:
    """A tree in pre-order: each call after the root goes under the previous one or under one of its parents."""
    parents = [-1]
    for _ in range(draw(st.integers(1, max_calls - 1))):
        open_calls = [len(parents) - 1]
        while parents[open_calls[-1]] >= 0:
            open_calls.append(parents[open_calls[-1]])
        parents.append(draw(st.sampled_from(open_calls[::-1])))
    stops = list(range(1, len(parents) + 1))
    for i in range(len(parents) - 1, 0, -1):
        stops[parents[i]] = max(stops[parents[i]], stops[i])
    return tuple(
        Call(name=f"c{i}#0", parent=parent, stop=stop)
        for i, (parent, stop) in enumerate(zip(parents, stops, strict=True))
    )


@st.composite
def _tensors(draw: Draw, n_calls: int, middle: int, n_steps: int) -> Tensor:
    saves = draw(
        st.lists(
            st.builds(Save, call=st.integers(1, n_calls - 1), until=st.integers(middle, n_steps)),
            min_size=1,
            max_size=3,
        )
    )
    return Tensor(bytes=draw(st.integers(0, 40)), free_step=draw(st.integers(0, middle)), saves=tuple(saves))


@st.composite
def _runs(draw: Draw, calls: tuple[Call, ...]) -> list[tuple[int, int, int]]:
    """Start, stop, length of some calls and some runs of siblings."""
    groups: dict[int, list[int]] = {}
    for i, call in enumerate(calls):
        groups.setdefault(call.parent, []).append(i)
    runs = [
        (group[i], calls[group[j]].stop, j - i + 1)
        for group in groups.values()
        for i in range(len(group))
        for j in range(i, len(group))
    ]
    return [run for run in runs if draw(st.integers(0, 4))]  # most of them


def _candidate(
    draw: Draw, run: tuple[int, int, int], calls: tuple[Call, ...], tensors: list[Tensor], middle: int, n_steps: int
) -> Candidate:
    """Restores part of what it frees, from its first unpack on, and holds a few tensors."""
    start, stop, length = run
    unpack = draw(st.integers(middle, n_steps))
    additions = [
        Addition(
            bytes=draw(st.sampled_from((tensor.bytes // 4, tensor.bytes))),
            start=min(unpack, save.until),
            until=save.until,
        )
        for tensor in tensors
        for save in tensor.saves
        if start <= save.call < stop and draw(st.booleans())
    ]
    holds = [
        Hold(tensor=tensor, until=draw(st.integers(unpack, n_steps)))
        for tensor in draw(st.lists(st.integers(0, len(tensors) - 1), max_size=2))
    ]
    return Candidate(
        name=f"c{start}#0",
        start=start,
        stop=stop,
        length=length,
        recompute_seconds=draw(st.integers(0, 24)) / 8,
        holds=tuple(holds),
        additions=tuple(additions),
    )


@st.composite
def chains_and_budgets(draw: Draw, *, max_blocks: int = 5, max_entries: int = 4) -> tuple[Problem, int]:
    """A row of blocks with menus, and a budget; backward gives the blocks back in turn, so that it is a chain.

    A block saves two tensors and reads the output of the one before. An entry holds that output, keeps one of the
    two tensors or none, and restores the others while its own backward runs.
    """
    n_blocks = draw(st.integers(1, max_blocks))
    n_steps = 3 * n_blocks + 1
    tensors: list[Tensor] = []
    candidates: list[Candidate] = []
    size = st.integers(1, 40)
    for block in range(n_blocks):
        begins = n_steps - 2 * (block + 1)
        boundary, kept = len(tensors), len(tensors) + 1
        tensors.append(Tensor(bytes=draw(size), free_step=block + 1))
        releases = (begins + 1, begins + 2)
        for until in releases:
            save = Save(call=1 + block, until=until)
            tensors.append(Tensor(bytes=draw(size), free_step=block + 1, saves=(save,)))
        for _ in range(draw(st.integers(0, max_entries))):
            keeps = draw(st.lists(st.integers(0, 1), max_size=1))  # both would be the plain block, which no menu has
            restored = [i for i in (0, 1) if i not in keeps]
            candidates.append(
                Candidate(
                    name=f"b{block}#0 entry {len(candidates)}",
                    start=1 + block,
                    stop=2 + block,
                    length=1,
                    recompute_seconds=draw(st.integers(0, 24)) / 8,
                    holds=(
                        Hold(tensor=boundary, until=begins + 2),
                        *(Hold(tensor=kept + i, until=releases[i]) for i in keeps),
                    ),
                    additions=(
                        *(Addition(bytes=tensors[kept + i].bytes, start=begins, until=releases[i]) for i in restored),
                        Addition(bytes=draw(st.integers(0, 9)), start=begins, until=begins + 1),
                    ),
                )
            )
    problem = Problem(
        steps=tuple(
            Step(name=f"step {i}", base_bytes=draw(st.integers(0, 6)) if i > n_blocks else 0) for i in range(n_steps)
        ),
        calls=(
            Call(name="", parent=-1, stop=1 + n_blocks),
            *(Call(name=f"b{i}#0", parent=0, stop=2 + i) for i in range(n_blocks)),
        ),
        tensors=tuple(tensors),
        candidates=tuple(candidates),
    )
    plain, lowest = simulate(problem, ()).peak_bytes, minimum_bytes(problem)
    return problem, max(1, draw(st.integers(lowest, plain)))


@st.composite
def problems_and_plans(draw: Draw) -> tuple[Problem, tuple[int, ...]]:
    """A problem and some candidates of it that do not overlap."""
    problem = draw(problems())
    chosen: list[int] = []
    for c in draw(st.permutations(range(len(problem.candidates)))):
        candidate = problem.candidates[c]
        free = all(
            problem.candidates[other].stop <= candidate.start or candidate.stop <= problem.candidates[other].start
            for other in chosen
        )
        if free and draw(st.booleans()):
            chosen.append(c)
    return problem, tuple(sorted(chosen))


@st.composite
def required_and_budgets(draw: Draw, *, max_entries: int = 2) -> tuple[Problem, int]:
    """A problem that requires one to three calls, which some plan recomputes, and a budget as for other problems."""
    problem = draw(problems(max_entries=max_entries))
    within = sorted({call for c in problem.candidates for call in range(c.start, c.stop)})
    required = draw(st.lists(st.sampled_from(within), min_size=1, max_size=3, unique=True)) if within else []
    while not coverable(problem, required):
        required.pop()
    problem = dataclasses.replace(problem, required=tuple(sorted(required)))
    plain, lowest = simulate(problem, ()).peak_bytes, minimum_bytes(problem)
    return problem, max(1, draw(st.integers(lowest - 2, max(plain, lowest) + 40)))
