"""What a plan decides about each call of the recorded step, and why: the module tree with held and freed bytes.

A tensor counts where forward saves it first, so that the rows add up: a row is what its own code and its children save.
A reason is said where the plan or the judge backs it, and nothing is said about how a solver found its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from ..._choose.candidates import Candidates
from ..._choose.candidates.from_plan import find_planned
from ..._choose.candidates.profile_index import Index
from ..._choose.pins import matches
from ..._data.plan import Plan
from ..._data.profile import Profile
from ...solvers.problem import Problem
from .names import alike, from_parent, span
from .profile import SMALL
from .reasons import Why

Decision = Literal["recomputed", "partly", "kept", "skipped"]


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a row about which the same is decided for the same reason; a key of `REASONS`, empty for ``partly``."""

    decision: Decision
    reason: str
    calls: int


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Module calls at one place of the tree, structurally identical siblings together. Figures are their sum.

    Attributes:
        depth: 0 for the root.
        name: for people, from the parent on: ``h.0 … h.11``; empty for the root.
        first: the first of the calls, by its key.
        class_name: class of the module.
        calls: how many calls the row stands for.
        held_bytes: what they save and what stands when backward begins, each storage once, where it is saved first.
        freed_bytes: what they save and the plan frees.
        recompute_seconds: predicted, of the segments that lie in these calls.
        decided: what is decided about them.
    """

    depth: int
    name: str
    first: str
    class_name: str
    calls: int
    held_bytes: int
    freed_bytes: int
    recompute_seconds: float
    decided: tuple[Decided, ...]


class Activations(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan does with what forward saves, when backward begins.

    Attributes:
        saved_bytes: what the plain step saves.
        freed_bytes: of it what the plan frees.
        replay_bytes: what the plan holds for replays, and the plain step would not.
        rows: the module tree, down to calls about which nothing is decided inside.
        small_rows: rows that save next to nothing, and are left out.
    """

    saved_bytes: int
    freed_bytes: int
    replay_bytes: int
    rows: tuple[DecisionRow, ...]
    small_rows: int


def decide(profile: Profile, plan: Plan) -> Activations:
    """Say what a plan decides about each call of the step that a profile recorded.

    Args:
        profile: the recorded step.
        plan: made from this profile or from one like it, or written by hand.

    Returns:
        The tree; the figures of its root are those of the whole step.

    Raises:
        NotApplicable: the plan does not fit the recorded step.

    The judge is asked once for each kept call of a row: O(kept calls × steps and tensors).
    """
    planned = find_planned(profile, plan)
    edges = (*planned.edges, profile.ticks)
    backward = next(step for step, edge in enumerate(edges) if edge >= profile.forward_ticks)
    freed, replay_bytes = _freed(planned.problem, planned.tensors, backward)
    tree = _Tree(planned, plan, freed)
    tree.add([0], 0)
    return Activations(
        saved_bytes=tree.saved[0],
        freed_bytes=tree.freed[0],
        replay_bytes=replay_bytes,
        rows=tuple(tree.rows),
        small_rows=tree.small_rows,
    )


def _freed(problem: Problem, tensors: Sequence[int], backward: int) -> tuple[set[int], int]:
    """The tensors that stand in the plain step as backward begins and not under the plan; bytes of the reverse."""
    covered = [False] * len(problem.calls)
    needed = [0] * len(problem.tensors)
    for candidate in problem.candidates:
        covered[candidate.start : candidate.stop] = [True] * (candidate.stop - candidate.start)
        for hold in candidate.holds:
            needed[hold.tensor] = max(needed[hold.tensor], hold.until)
    freed: set[int] = set()
    replay_bytes = sum(
        addition.bytes
        for candidate in problem.candidates
        for addition in candidate.additions
        if addition.start < backward < addition.until  # copies of buffers
    )
    for i, tensor in enumerate(problem.tensors):
        plain = max([tensor.free_step, *(save.until for save in tensor.saves)]) > backward
        kept = max([tensor.free_step, needed[i], *(s.until for s in tensor.saves if not covered[s.call])]) > backward
        if plain and not kept:
            freed.add(tensors[i])
        elif kept and not plain:
            replay_bytes += tensor.bytes
    return freed, replay_bytes


class _Tree:
    """Rows of the module tree, from the root down."""

    def __init__(self, planned: Candidates, plan: Plan, freed: set[int]) -> None:
        self.rows: list[DecisionRow] = []
        self.small_rows = 0
        profile = planned.index.profile
        calls = self._calls = profile.calls
        self._children: list[list[int]] = [[] for _ in calls]
        self.saved, self.freed = [0] * len(calls), [0] * len(calls)
        seen: set[int] = set()
        for tensor, call in zip(profile.saves.tensor, profile.saves.call, strict=True):
            if tensor >= 0 and tensor not in seen:
                seen.add(tensor)
                self.saved[call] += profile.tensors.bytes[tensor]
                self.freed[call] += profile.tensors.bytes[tensor] * (tensor in freed)
        for i in range(len(calls) - 1, 0, -1):  # children come after their parents in pre-order
            self._children[calls[i].parent].insert(0, i)
            self.saved[calls[i].parent] += self.saved[i]
            self.freed[calls[i].parent] += self.freed[i]
        self._segments = _segments(planned)
        self._decisions = _decisions(planned.index, plan)
        self._why = Why(planned, plan)

    def add(self, group: Sequence[int], depth: int) -> None:
        """Append the row of calls that look alike, then those of their children, where they are decided apart."""
        decisions = [self._decisions[i] for i in group]
        seconds = sum(seconds for members, seconds in self._segments if self._inside(members, group))
        saved_bytes = sum(self.saved[i] for i in group)
        if depth and not seconds and saved_bytes <= SMALL * self.saved[0]:
            self.small_rows += 1
            return
        reasons = self._why.kept([i for i in group if self._decisions[i] == ("kept", "")])
        decided = Counter((self._decisions[i][0], self._decisions[i][1] or reasons.get(i, "")) for i in group)
        freed_bytes = sum(self.freed[i] for i in group)
        records = [self._calls[i] for i in group]
        self.rows.append(
            DecisionRow(
                depth=depth,
                name=span(list(dict.fromkeys(from_parent(record, self._calls) for record in records))),
                first=records[0].key,
                class_name=records[0].class_name,
                calls=len(group),
                held_bytes=saved_bytes - freed_bytes,
                freed_bytes=freed_bytes,
                recompute_seconds=seconds,
                decided=tuple(
                    Decided(decision=decision, reason=reason, calls=number)
                    for (decision, reason), number in decided.most_common()
                ),
            )
        )
        apart = any(decision == "partly" for decision, _ in decisions)
        # Where the memory is worth a look, though nothing is decided inside.
        large = 2 * saved_bytes > self.saved[0] and len(group) == 1 and decisions[0] == ("kept", "")
        if apart or large:
            for children in alike([self._children[i] for i in group], self._calls):
                self.add(children, depth + 1)

    def _inside(self, members: Iterable[int], group: Sequence[int]) -> bool:
        return all(any(i <= member < self._calls[i].stop for i in group) for member in members)


def _segments(planned: Candidates) -> list[tuple[tuple[int, ...], float]]:
    """The calls of each segment, or the call whose own code it takes in, and its seconds."""
    index = planned.index
    row = {call.key: i for i, call in enumerate(index.profile.calls)}
    return [
        (tuple(row[index.nodes[m].record.key] for m in each.members), each.segment.recompute_seconds)
        for each in planned.replays
    ]


def _decisions(index: Index, plan: Plan) -> list[tuple[Decision, str]]:
    """What a plan decides about each call, and why; no reason yet for those that lie in no segment."""
    named = {node.key: number for number, node in enumerate(index.nodes)}
    found: dict[int, tuple[Decision, str]] = {}
    apart: set[int] = set()  # calls in which more than one thing is decided

    def split(call: int) -> None:
        while call >= 0:
            apart.add(call)
            call = index.nodes[call].parent

    for segment in plan.segments:
        kept, skipped = ({named[key] for key in keys} for keys in (segment.keep, segment.skip))
        for member in (named[key] for key in segment.calls):
            split(index.nodes[member].parent)
            pinned = any(matches(index.nodes[member].record, pattern) for pattern in plan.pinned_recompute)
            for node in range(member, index.nodes[member].stop):
                around = found.get(index.nodes[node].parent, ("recomputed", ""))
                if node in kept or around[0] == "kept":
                    found[node] = "kept", "read"
                elif node in skipped or around[0] == "skipped":
                    found[node] = "skipped", "not read"
                else:
                    found[node] = "recomputed", "inside" if node > member else "pinned" if pinned else "chosen"
            for call in reversed(index.within((member,), index.call_nodes)):
                inside = {found[node][0] for node in index.children[call] if not _is_view(index, node)}
                if inside and "recomputed" not in inside and call not in apart:
                    found[call] = ("kept", "read") if "kept" in inside else ("skipped", "not read")
                elif not inside <= {"recomputed"}:
                    split(call)
    for call in apart:
        decision, reason = found.get(call, ("kept", ""))
        found[call] = "partly", reason if decision == "recomputed" else ""
    return [found.get(call, ("kept", "")) for call in index.call_nodes]


def _is_view(index: Index, node: int) -> bool:
    return index.is_function(node) and index.is_free(node)
