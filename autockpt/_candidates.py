"""From a profile to a problem: what may be recomputed, what that holds, restores and costs. No torch.

forward                                        backward
├── h.3 ──────────┤                            unpack          releases
x │ a   b   c   y │                            │               │ │   │
▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒┤             boundary x: through the replay, saved parts longer
  ├───┤                                        ┌replay┐───────┤ │   │   a, b, c: restored by the replay,
      ├───┤                                    │ peak │─────────┤   │   then dying one by one
          ├───┤                                └──────┘─────────────┤
"""

from __future__ import annotations

import bisect
import statistics
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._profile import CallRecord, Profile
from .solvers.problem import Addition, Call, Candidate, Hold, Problem, Save, Step, Tensor

__all__ = ["Candidates", "Run", "find_candidates"]

Ints = npt.NDArray[np.int64]

MAX_RUNS_PER_PARENT = 700
"""Runs of siblings grow with the square of their number; beyond this, only the shorter ones are offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a candidate stands for in the profile.

    Attributes:
        members: indices of the calls, siblings in forward order.
        freed_bytes: bytes of the tensors that the calls save and a replay brings back.
        boundary_bytes: bytes of the tensors that must stay alive for the replay.
        buffers: qualified names of the buffers that the calls change.
    """

    members: tuple[int, ...]
    freed_bytes: int
    boundary_bytes: int
    buffers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A problem, and what each of its candidates means.

    Attributes:
        problem: what the solver sees.
        runs: for each candidate of the problem, the calls it stands for.
        refused: calls that save something but cannot be replayed exactly, with the reason.
    """

    problem: Problem
    runs: tuple[Run, ...]
    refused: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A candidate in ticks, before the clock is cut into steps."""

    run: Run
    start: int
    stop: int
    seconds: float
    replay: int
    replay_bytes: int
    restored: tuple[tuple[int, int], ...]  # (tick until which it lives, bytes)
    boundary: tuple[tuple[int, int], ...]  # (tensor, tick until which it is held)
    snapshot_bytes: int


def find_candidates(profile: Profile) -> Candidates:
    """Find everything in a profile that may be recomputed, and state it as a problem.

    Args:
        profile: the recorded step.

    Returns:
        The problem, what its candidates mean, and what was refused.

    Whole calls at every depth and runs of consecutive sibling calls; O(candidates × calls and tensors inside).
    """
    book = _Book(profile)
    drafts: list[_Draft] = []
    refused: list[tuple[int, str]] = []
    for parent in range(len(profile.calls)):
        children = book.children[parent]
        for child in children:
            if book.saves_in(child) and (reason := book.reason((child,))):
                refused.append((child, reason))
        for members in _runs(children, book):
            if not book.reason(members) and (draft := book.draft(members)) is not None:
                drafts.append(draft)
    return Candidates(
        problem=_problem(profile, book, drafts), runs=tuple(draft.run for draft in drafts), refused=tuple(refused)
    )


def _runs(children: list[int], book: _Book) -> list[tuple[int, ...]]:
    """Runs of consecutive siblings that begin and end with a call that saves something."""
    saving = [bool(book.saves_in(child)) for child in children]
    longest = len(children)
    while longest > 1 and longest * (2 * len(children) - longest + 1) // 2 > MAX_RUNS_PER_PARENT:
        longest -= 1
    return [
        tuple(children[first : last + 1])
        for first in range(len(children))
        if saving[first]
        for last in range(first, min(first + longest, len(children)))
        if saving[last]
    ]


class _Book:
    """A profile laid out for looking things up."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.children: list[list[int]] = [[] for _ in profile.calls]
        for index, call in enumerate(profile.calls):
            if call.parent >= 0:
                self.children[call.parent].append(index)
        tensors, saves = profile.tensors, profile.saves
        self.bytes, self.birth, self.natural = (
            np.array(c, np.int64) for c in (tensors.bytes, tensors.birth, tensors.natural)
        )
        self.call_at = _innermost_calls(profile)
        in_forward = self.birth < profile.forward_ticks
        self.birth_call = np.where(in_forward, self.call_at[np.minimum(self.birth, profile.forward_ticks - 1)], -1)
        # Saves by call, so that those of a subtree are one slice.
        self._order = sorted(range(len(saves)), key=lambda i: saves.call[i])
        self._save_calls = [saves.call[i] for i in self._order]
        by_signature: dict[str, list[float]] = defaultdict(list)
        for call in profile.calls:
            by_signature[call.signature].append(call.forward_seconds)
        self._median = {signature: statistics.median(times) for signature, times in by_signature.items()}
        self._partial = self._partial_seconds()

    def saves_in(self, call: int) -> list[int]:
        """Saves made inside a call, children included."""
        return self.saves_of(call, self.profile.calls[call].stop)

    def saves_of(self, start: int, stop: int) -> list[int]:
        """Saves made by the calls ``[start, stop)``."""
        return self._order[bisect.bisect_left(self._save_calls, start) : bisect.bisect_left(self._save_calls, stop)]

    def reason(self, members: tuple[int, ...]) -> str:
        """Why a run cannot be replayed exactly; empty where it can."""
        calls = self.profile.calls
        for member in members:
            if calls[member].refused:
                return calls[member].refused
            for argument in calls[member].arguments:
                if argument.mutated and not self._inside(argument.sources, members):
                    return "one of its arguments is changed in place later"
        return ""

    @staticmethod
    def _inside(sources: tuple[int, ...], members: tuple[int, ...]) -> bool:
        """Whether one of the run's own members returned the argument."""
        return any(source in members for source in sources)

    def draft(self, members: tuple[int, ...]) -> _Draft | None:
        """Work out what recomputing a run holds, restores and costs; None where it would free nothing."""
        profile, calls, saves = self.profile, self.profile.calls, self.profile.saves
        start, stop = members[0], calls[members[-1]].stop
        inside = self.saves_of(start, stop)
        replay = min((saves.unpack[i] for i in inside), default=profile.ticks)
        if replay >= profile.ticks:
            return None  # backward never reads what it saves
        needed = [i for i in inside if saves.release[i] > replay]
        last = max(needed, key=lambda i: saves.pack[i])
        until: dict[tuple[int, int], int] = {}  # by tensor, and by member for those that make a copy of their own
        boundary = dict.fromkeys(self._boundary(members), replay + 1)
        for i in needed:
            tensor = saves.tensor[i]
            if tensor in boundary:
                boundary[tensor] = max(boundary[tensor], saves.release[i])
            elif tensor >= 0:
                copy = (tensor, self._maker(tensor, saves.call[i], members))
                until[copy] = max(until.get(copy, 0), saves.release[i])
        if not until:
            return None  # it saves only its own arguments
        buffers = tuple(dict.fromkeys(name for call in calls[start:stop] for name in call.buffers))
        snapshot = sum(profile.buffer_bytes[name] for name in buffers)
        draws = any(calls[member].draws for member in members)
        # A replay runs on copies of the snapshot, and swaps the generators' states before and after.
        replay_extra = snapshot + (2 * profile.generator_bytes if draws else 0)
        return _Draft(
            run=Run(
                members=members,
                freed_bytes=int(sum(self.bytes[tensor] for tensor in {tensor for tensor, _ in until})),
                boundary_bytes=int(sum(self.bytes[tensor] for tensor in boundary)),
                buffers=buffers,
            ),
            start=start,
            stop=stop,
            seconds=self._seconds(members, last) + profile.replay_host_seconds,
            replay=replay,
            replay_bytes=self._replay_peak(members, saves.pack[last], set(until)) + replay_extra,
            restored=tuple((tick, int(self.bytes[tensor])) for (tensor, _), tick in until.items()),
            boundary=tuple(boundary.items()),
            snapshot_bytes=snapshot,
        )

    def _maker(self, tensor: int, call: int, members: tuple[int, ...]) -> int:
        """Return the member that makes a copy of its own for what `call` saves, -1 if there is one for the whole run.

        Where autocast finds a weight's cast in its cache, the forward that saves it neither made it nor was given it;
        replays leave that cache alone.
        """
        calls = self.profile.calls
        member = next(member for member in members if call < calls[member].stop)
        made = member <= self.birth_call[tensor] < calls[member].stop
        return -1 if made or any(tensor == argument.tensor for argument in calls[member].arguments) else member

    def _boundary(self, members: tuple[int, ...]) -> dict[int, None]:
        """Tensors that come into the run from outside, the caller's own code between its calls included."""
        return dict.fromkeys(
            argument.tensor
            for member in members
            for argument in self.profile.calls[member].arguments
            if argument.tensor >= 0 and not self._inside(argument.sources, members)
        )

    def _replay_peak(self, members: tuple[int, ...], last_pack: int, restored: set[tuple[int, int]]) -> int:
        """Highest level of what a replay bears, up to the last save.

        Restored tensors stay; a member's output stays until the last member that takes it has run; everything
        else dies as it did in forward.
        """
        copies = int(sum(self.bytes[tensor] for tensor, maker in restored if maker >= 0))
        calls = self.profile.calls
        start, stop = members[0], calls[members[-1]].stop
        low, high = np.searchsorted(self.birth, (calls[start].enter, last_pack))
        born = np.arange(low, high)
        born = born[(self.birth_call[low:high] >= start) & (self.birth_call[low:high] < stop)]
        if not len(born):
            return copies
        death = self.natural[born].copy()
        position = {int(tensor): i for i, tensor in enumerate(born)}
        for member in members:
            for tensor in calls[member].outputs:
                if tensor in position:
                    death[position[tensor]] = calls[member].exit
        for member in members:
            for argument in calls[member].arguments:
                if argument.tensor in position and self._inside(argument.sources, members):
                    death[position[argument.tensor]] = calls[member].exit
        for tensor, maker in restored:
            if maker < 0 and tensor in position:
                death[position[tensor]] = last_pack + 1
        birth = self.birth[born]
        ticks = np.concatenate([birth, death])
        change = np.concatenate([self.bytes[born], -self.bytes[born]])
        order = np.lexsort((change, ticks))  # at one tick, deaths come before births
        return int(np.cumsum(change[order]).max(initial=0)) + copies

    def _seconds(self, members: tuple[int, ...], last: int) -> float:
        """Forward seconds of the members up to the last save that backward needs."""
        calls, saves = self.profile.calls, self.profile.saves
        seconds = 0.0
        for member in members:
            if calls[member].exit > saves.pack[last]:
                return seconds + self._partial.get((member, last), saves.seconds[last] - calls[member].enter_seconds)
            seconds += self._median[calls[member].signature]
        return seconds

    def _partial_seconds(self) -> dict[tuple[int, int], float]:
        """Median over identical calls of the time from a call's begin to the last save inside it."""
        calls, saves = self.profile.calls, self.profile.saves
        groups: dict[tuple[str, int], list[tuple[int, int, float]]] = defaultdict(list)
        for call in range(len(calls)):
            inside = self.saves_in(call)
            if inside:
                last = max(inside, key=lambda i: saves.pack[i])
                elapsed = max(saves.seconds[last] - calls[call].enter_seconds, 0.0)
                groups[calls[call].signature, len(inside)].append((call, last, elapsed))
        return {
            (call, last): statistics.median(elapsed for _, _, elapsed in group)
            for group in groups.values()
            for call, last, _ in group
        }


def _innermost_calls(profile: Profile) -> Ints:
    """For each tick of forward, the innermost call that was open."""
    innermost = np.zeros(max(profile.forward_ticks, 1), np.int64)
    for index, call in enumerate(profile.calls):  # pre-order: children write over their parents
        innermost[call.enter : call.exit] = index
    return innermost


def _problem(profile: Profile, book: _Book, drafts: list[_Draft]) -> Problem:
    """Cut the clock where something that a decision changes begins or ends, and state the problem in steps."""
    saves = profile.saves
    movable = sorted({t for t in saves.tensor if t >= 0} | {t for draft in drafts for t, _ in draft.boundary})
    cuts = {0, *(int(book.natural[t]) for t in movable), *saves.release}
    for draft in drafts:
        cuts.update((draft.replay, draft.replay + 1))
        if draft.snapshot_bytes:
            cuts.add(profile.calls[draft.start].enter)
    edges = sorted(cut for cut in cuts if cut < profile.ticks)
    step_of = {edge: step for step, edge in enumerate(edges)}

    def step(tick: int) -> int:
        return step_of.get(tick, len(edges))

    by_tensor: dict[int, list[Save]] = defaultdict(list)
    for tensor, call, release in zip(saves.tensor, saves.call, saves.release, strict=True):
        by_tensor[tensor].append(Save(call=call, until=step(release)))
    number = {tensor: i for i, tensor in enumerate(movable)}
    return Problem(
        steps=_steps(profile, book, edges),
        calls=tuple(Call(name=call.key, parent=call.parent, stop=call.stop) for call in profile.calls),
        tensors=tuple(
            Tensor(bytes=int(book.bytes[t]), free_step=step(int(book.natural[t])), saves=tuple(by_tensor[t]))
            for t in movable
        ),
        candidates=tuple(_candidate(profile.calls, draft, number, step_of, len(edges)) for draft in drafts),
    )


def _candidate(
    calls: tuple[CallRecord, ...], draft: _Draft, number: dict[int, int], step_of: dict[int, int], n_steps: int
) -> Candidate:
    """State one candidate in steps, additions that end together as one."""
    names = [calls[member].key for member in draft.run.members]
    replay = step_of[draft.replay]
    ends: dict[int, int] = defaultdict(int)
    for tick, size in draft.restored:
        ends[step_of.get(tick, n_steps)] += size
    additions = [Addition(bytes=draft.replay_bytes, start=replay, until=replay + 1)]
    additions += [Addition(bytes=size, start=replay + 1, until=end) for end, size in sorted(ends.items())]
    if draft.snapshot_bytes:
        enter = step_of[calls[draft.start].enter]
        additions.append(Addition(bytes=draft.snapshot_bytes, start=enter, until=replay + 1))
    return Candidate(
        name=names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}",
        start=draft.start,
        stop=draft.stop,
        length=len(names),
        recompute_seconds=draft.seconds,
        holds=tuple(Hold(tensor=number[t], until=step_of.get(tick, n_steps)) for t, tick in draft.boundary),
        additions=tuple(additions),
    )


def _steps(profile: Profile, book: _Book, edges: list[int]) -> tuple[Step, ...]:
    """Highest base level between the edges: everything that no decision changes."""
    tensors, saves = profile.tensors, profile.saves
    held = book.natural.copy()
    for tensor, release in zip(saves.tensor, saves.release, strict=True):
        if tensor >= 0:
            held[tensor] = max(held[tensor], release)
    death = np.maximum(np.array(tensors.death, np.int64), book.natural)
    change = np.zeros(profile.ticks + 1, np.int64)
    np.add.at(change, book.birth, book.bytes)
    np.add.at(change, book.natural, -book.bytes)
    late = death > held  # something that is no save kept it: not ours to free
    np.add.at(change, held[late], book.bytes[late])
    np.add.at(change, death[late], -book.bytes[late])
    level = np.cumsum(change)[:-1] + profile.static.total_bytes
    base = np.maximum.reduceat(level, edges) if len(level) else np.zeros(len(edges), np.int64)
    names = _names(profile, book, level, edges)
    return tuple(Step(name=name, base_bytes=int(size)) for name, size in zip(names, base, strict=True))


def _names(profile: Profile, book: _Book, level: Ints, edges: list[int]) -> list[str]:
    """Say for each step where its highest level stands."""
    saves = profile.saves
    backward = sorted((release, call) for release, call in zip(saves.release, saves.call, strict=True))
    ticks = [tick for tick, _ in backward]
    names = []
    for edge, stop in zip(edges, [*edges[1:], profile.ticks], strict=True):
        top = edge + int(np.argmax(level[edge:stop]))
        if top < profile.forward_ticks:
            names.append(f"forward of {profile.calls[int(book.call_at[top])].key}")
        elif (i := bisect.bisect_left(ticks, top)) < len(backward):
            names.append(f"backward of {profile.calls[backward[i][1]].key}")
        else:
            names.append("the end of backward")
    return names
