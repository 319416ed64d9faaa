"""From drafts to a problem: the clock is cut where something that a decision changes begins or ends."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ..._data.profile import Profile
from ..._data.tables import CallRecord
from ...solvers.problem import Addition, Call, Candidate, Hold, Problem, Save, Step, Tensor
from .book import Book, Ints
from .drafts import Draft, Run
from .glue import is_glue
from .products import multiplies


def cut_clock(profile: Profile, book: Book, drafts: list[Draft]) -> tuple[int, ...]:
    """Ticks at which something that a decision changes begins or ends: each begins a step."""
    cuts = {0, *(int(book.natural[t]) for t in movable(profile, drafts)), *profile.saves.release}
    for draft in drafts:
        cuts.update((draft.replay, draft.replay + 1))
        if draft.snapshot_bytes:
            cuts.add(profile.calls[draft.start].enter)
    return tuple(sorted(cut for cut in cuts if cut < profile.ticks))


def state_problem(
    profile: Profile,
    book: Book,
    drafts: list[Draft],
    edges: Sequence[int],
) -> Problem:
    """State the problem in steps, which begin at the `edges`."""
    saves, tensors = profile.saves, movable(profile, drafts)
    step_of = {edge: step for step, edge in enumerate(edges)}
    steps = base_steps(profile, book, edges)

    def step(tick: int) -> int:
        return step_of.get(tick, len(steps))

    by_tensor: dict[int, list[Save]] = defaultdict(list)
    for tensor, call, release in zip(saves.tensor, saves.call, saves.release, strict=True):
        by_tensor[tensor].append(Save(call=call, until=step(release)))
    number = {tensor: i for i, tensor in enumerate(tensors)}
    ops = profile.ops
    products = [(f, call) for f, call, name in zip(ops.function, ops.call, ops.name, strict=True) if multiplies(name)]
    outside = frozenset(call for f, call in products if f < 0)  # multiplies outside any function: any replay does too
    inside = frozenset(f for f, _ in products)
    return Problem(
        steps=steps,
        calls=tuple(
            Call(name=call.key, parent=call.parent, stop=call.stop, function=is_glue(call)) for call in profile.calls
        ),
        tensors=tuple(
            Tensor(bytes=int(book.bytes[t]), free_step=step(int(book.natural[t])), saves=tuple(by_tensor[t]))
            for t in tensors
        ),
        candidates=tuple(_candidate(book, draft, number, step_of, len(steps), inside, outside) for draft in drafts),
    )


def movable(profile: Profile, drafts: list[Draft]) -> list[int]:
    """Tensors that backward, or a candidate, can keep alive: those of the problem, in its order."""
    return sorted({t for t in profile.saves.tensor if t >= 0} | {t for draft in drafts for t, _ in draft.held})


def _candidate(
    book: Book,
    draft: Draft,
    number: dict[int, int],
    step_of: dict[int, int],
    n_steps: int,
    products: frozenset[int],
    outside: frozenset[int],
) -> Candidate:
    """State one candidate in steps, additions that end together as one."""
    replay, calls = step_of[draft.replay], book.profile.calls
    functions = book.functions_of_run(draft.run.members)
    ends: dict[int, int] = defaultdict(int)
    for tick, size in draft.restored:
        ends[step_of.get(tick, n_steps)] += size
    additions = [Addition(bytes=draft.replay_bytes, start=replay, until=replay + 1)]
    additions += [Addition(bytes=size, start=replay + 1, until=end) for end, size in sorted(ends.items())]
    if draft.snapshot_bytes:
        enter = step_of[calls[draft.start].enter]
        additions.append(Addition(bytes=draft.snapshot_bytes, start=enter, until=replay + 1))
    return Candidate(
        name=_name(calls, draft.run),
        start=draft.start,
        stop=draft.stop,
        length=len(draft.run.members),
        partial=bool(draft.run.idle.keep or draft.run.idle.skip),
        recompute_seconds=draft.seconds,
        holds=tuple(Hold(tensor=number[t], until=step_of.get(tick, n_steps)) for t, tick in draft.held),
        additions=tuple(additions),
        multiplies=any(f in products for f in functions if f not in draft.run.idle.given)
        or not outside.isdisjoint(range(draft.start, draft.stop)),
    )


def _name(calls: tuple[CallRecord, ...], run: Run) -> str:
    """Name a candidate for people."""
    first, last = calls[run.members[0]].key, calls[run.members[-1]].key
    name = first if first == last else f"{first} … {last}"
    idle = (*run.idle.keep, *run.idle.skip)
    return f"{name} but {', '.join(idle)}" if idle else name


def held_until(profile: Profile, book: Book) -> Ints:
    """For each tensor, the tick until which it stands naturally or for a save."""
    held: Ints = book.natural.copy()
    for tensor, release in zip(profile.saves.tensor, profile.saves.release, strict=True):
        if tensor >= 0:
            held[tensor] = max(held[tensor], release)
    return held


def base_level(profile: Profile, book: Book) -> Ints:
    """Level at each tick of everything that no decision changes."""
    held = held_until(profile, book)
    death = np.maximum(np.array(profile.tensors.death, np.int64), book.natural)
    change = np.zeros(profile.ticks + 1, np.int64)
    np.add.at(change, book.birth, book.bytes)
    np.add.at(change, book.natural, -book.bytes)
    late = death > held  # something that is no save kept it: not ours to free
    np.add.at(change, held[late], book.bytes[late])
    np.add.at(change, death[late], -book.bytes[late])
    level: Ints = np.cumsum(change)[:-1] + profile.static.total_bytes
    return level


def top_ticks(level: Ints, edges: Sequence[int]) -> list[int]:
    """For each step, the tick at which a level is highest."""
    stops = [*edges[1:], len(level)]
    return [edge + int(np.argmax(level[edge:stop])) for edge, stop in zip(edges, stops, strict=True)]


def base_steps(profile: Profile, book: Book, edges: Sequence[int]) -> tuple[Step, ...]:
    """Highest base level between the edges, and in the optimizer step: everything that no decision changes."""
    level = base_level(profile, book)
    tops = top_ticks(level, edges)
    names = _names(profile, book, tops)
    steps = [Step(name=name, base_bytes=int(level[top])) for name, top in zip(names, tops, strict=True)]
    if profile.optimizer:
        steps.append(Step(name="optimizer step", base_bytes=int(level[-1]) + profile.optimizer_step_bytes))
    return tuple(steps)


def _names(profile: Profile, book: Book, tops: Sequence[int]) -> list[str]:
    """Say for each step where its highest level stands."""
    saves = profile.saves
    backward = sorted((release, call) for release, call in zip(saves.release, saves.call, strict=True))
    ticks = [tick for tick, _ in backward]
    names = []
    for top in tops:
        if top < profile.forward_ticks:
            names.append(f"forward of {profile.calls[int(book.call_at[top])].key}")
        elif (i := bisect.bisect_left(ticks, top)) < len(backward):
            names.append(f"backward of {profile.calls[backward[i][1]].key}")
        else:
            names.append("the end of backward")
    return names
