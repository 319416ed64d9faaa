"""What a plan decides about each call of the recorded step, and why: the module tree with held and freed bytes.

A tensor counts where forward saves it first, so that the rows add up: a row is what its own code and its children save.
A reason is said where the plan or the judge backs it, and nothing is said about how a solver found its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from ..._choose.candidates.book import Book
from ..._choose.candidates.drafts import Draft, make_draft
from ..._choose.candidates.planned import planned_drafts
from ..._choose.candidates.steps import cut_clock, movable, state_problem
from ..._choose.pins import matches
from ..._data.keys import split_key
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.tables import CallRecord
from ...solvers.problem import Problem
from ...solvers.simulate import simulate
from .names import alike, from_parent, span
from .profile import SMALL

_CLEARLY = 1.05  # seconds for a byte that differ by less say nothing

Decision = Literal["recomputed", "partly", "kept", "skipped"]

REASONS = {
    "chosen": "a segment of the plan",
    "pinned": "asked for by keep or recompute",
    "inside": "inside a segment",
    "read": "inside a segment, whose replay reads its result",
    "not read": "inside a segment, whose replay does without its result",
    "refused": "cannot be replayed exactly, see below",
    "frees nothing": "what it saves would be held all the same",
    "no lower peak": "recomputing it as well would not lower the predicted peak",
    "costs more": "the budget is met, and it costs more seconds for each byte that it frees than every segment chosen",
    "not needed": "the budget is met without it",
    "too costly": "recomputing it as well would exceed the recompute overhead asked for",
    "not chosen": "the plan does not name it",
}
"""Reasons for a decision, and what each of them means."""


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
    book, drafts = planned_drafts(profile, plan)
    edges = cut_clock(book.profile, book, drafts)
    problem = state_problem(book.profile, book, drafts, edges)
    backward = next(step for step, edge in enumerate((*edges, profile.ticks)) if edge >= profile.forward_ticks)
    freed, replay_bytes = _freed(problem, movable(book.profile, drafts), backward)
    tree = _Tree(profile, plan, freed, book, drafts)
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

    def __init__(self, profile: Profile, plan: Plan, freed: set[int], book: Book, drafts: list[Draft]) -> None:
        self.rows: list[DecisionRow] = []
        self.small_rows = 0
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
        self._segments = _segments(profile, book, drafts)
        self._decisions = _decisions(calls, plan)
        self._why = _Why(profile, plan, book, drafts)

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


def _segments(profile: Profile, book: Book, drafts: Sequence[Draft]) -> list[tuple[tuple[int, ...], float]]:
    """The calls of each segment, or the call whose own code it takes in, and its seconds."""
    index = {call.key: i for i, call in enumerate(profile.calls)}
    found = []
    for draft in drafts:
        keys = [split_key(book.profile.calls[member].key)[0] for member in draft.run.members]
        found.append((tuple(index[key] for key in keys), draft.seconds))
    return found


def _decisions(calls: Sequence[CallRecord], plan: Plan) -> list[tuple[Decision, str]]:
    """What a plan decides about each call, and why; no reason yet for those that lie in no segment."""
    index = {call.key: i for i, call in enumerate(calls)}
    found: list[tuple[Decision, str]] = [("kept", "")] * len(calls)
    apart: set[int] = set()  # calls in which more than one thing is decided

    def split(call: int) -> None:
        while call >= 0:
            apart.add(call)
            call = calls[call].parent

    for segment in plan.segments:
        for key in segment.calls:
            call, function = split_key(key)
            if function:
                split(index[call])
                continue
            member = index[call]
            split(calls[member].parent)
            pinned = any(matches(calls[member], pattern) for pattern in plan.pinned_recompute)
            found[member] = "recomputed", "pinned" if pinned else "chosen"
            for inner in range(member + 1, calls[member].stop):
                found[inner] = "recomputed", "inside"
        units: tuple[tuple[Decision, str, tuple[str, ...]], ...] = (
            ("kept", "read", segment.keep),
            ("skipped", "not read", segment.skip),
        )
        for decision, reason, keys in units:
            for key in keys:
                call, function = split_key(key)
                if function:
                    split(index[call])
                    continue
                split(calls[index[call]].parent)
                for inner in range(index[call], calls[index[call]].stop):
                    found[inner] = decision, reason
    for split_call in apart:
        decision, reason = found[split_call]
        found[split_call] = "partly", reason if decision == "recomputed" else ""
    return found


class _Why:
    """Why a call that lies in no segment is kept."""

    def __init__(self, profile: Profile, plan: Plan, book: Book, drafts: list[Draft]) -> None:
        self._calls, self._plan, self._book, self._drafts = profile.calls, plan, book, drafts
        self._index = {call.key: i for i, call in enumerate(book.profile.calls)}
        self._refused = {refusal.call for refusal in plan.refused}
        self._dearest = max(
            (draft.seconds / draft.run.freed_bytes for draft in drafts if draft.run.freed_bytes), default=0.0
        )

    def kept(self, calls: Sequence[int]) -> dict[int, str]:
        """Return a key of `REASONS` for each of the calls."""
        found = {call: self._named(call) for call in calls}
        drafts = {call: make_draft(self._book, (self._index[self._calls[call].key],)) for call in calls}
        could = {call: draft for call, draft in drafts.items() if draft is not None and not found[call]}
        lower = self._lowering(list(could.values()))
        for call in calls:
            draft = could.get(call)
            found[call] = found[call] or ("frees nothing" if draft is None else "no lower peak")
            if draft is not None and draft in lower:
                found[call] = self._beside(draft)
        return found

    def _named(self, call: int) -> str:
        """What the plan itself says about a call."""
        around = call
        while around >= 0:  # what is pinned is kept with all that lies in it
            if any(matches(self._calls[around], pattern) for pattern in self._plan.pinned_keep):
                return "pinned"
            around = self._calls[around].parent
        return "refused" if self._calls[call].key in self._refused else ""

    def _lowering(self, drafts: list[Draft]) -> list[Draft]:
        """Those that lower the plan's peak when they are recomputed as well, each by itself."""
        if not drafts:
            return []
        together = [*self._drafts, *drafts]
        edges = cut_clock(self._book.profile, self._book, together)
        problem = state_problem(self._book.profile, self._book, together, edges)
        planned = range(len(self._drafts))
        peak_bytes = simulate(problem, planned).peak_bytes
        return [
            draft
            for i, draft in enumerate(drafts, len(planned))
            if simulate(problem, [*planned, i]).peak_bytes < peak_bytes
        ]

    def _beside(self, draft: Draft) -> str:
        """Why a plan does without what would lower its peak."""
        goal, plan = self._plan.goal, self._plan
        if goal is not None and goal.max_overhead is not None:
            most_seconds = goal.max_overhead * plan.plain_seconds
            return "too costly" if plan.recompute_seconds + draft.seconds > most_seconds else "not chosen"
        if plan.budget_bytes is None or (goal is not None and goal.budget_bytes is None):
            return "not chosen"
        dearer = draft.seconds > _CLEARLY * self._dearest * draft.run.freed_bytes
        return "costs more" if self._drafts and dearer else "not needed"
