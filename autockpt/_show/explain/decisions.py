"""What a plan decides about each call of the recorded step, and why: the module tree with held and freed bytes.

A tensor counts only where forward saves it first, so the rows add up: a row has what its own code and its children
save. How the solver arrived at a decision is not part of this.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Any, Literal

import msgspec

from ..._choose.candidates import Candidates
from ..._choose.candidates.from_plan import find_planned
from ..._choose.index.profile_index import Index
from ..._choose.pinned.matching import matched
from ..._choose.replay_cost.effects import replay_of
from ..._data.plan import Plan
from ..._data.profile import Profile
from ...solvers import simulate
from ...solvers.units import format_like, format_seconds
from ..page import PageTable, counted
from .tree import SMALL, TreeRow, saved_inside, walk

Decision = Literal["recomputed", "partly", "kept", "skipped", "moved"]

REASONS = {
    "chosen": "a segment of the plan",
    "waits": "what it saves waits off the device",
    "pinned": "asked for by keep or recompute",
    "inside": "inside a segment",
    "read": "inside a segment, whose replay reads its result",
    "not read": "inside a segment, whose replay does without its result",
    "refused": "cannot be replayed exactly, see below",
    "frees nothing": "what it saves would be held all the same",
    "not chosen": "the plan does without it",
}
"""The reasons for a decision, and what each means."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a row with the same decision and the same reason: a key of `REASONS`, or empty for ``partly``."""

    decision: Decision
    reason: str
    calls: int


class DecisionRow(TreeRow, frozen=True, kw_only=True):
    """A row of the module tree.

    Attributes:
        held_bytes: bytes that these calls save first and that are still held when backward begins; each storage once.
        freed_bytes: bytes that these calls save first and that the plan frees.
        recompute_seconds: predicted recompute seconds of the segments inside these calls.
        decided: the decisions on these calls.
    """

    held_bytes: int
    freed_bytes: int
    recompute_seconds: float
    decided: tuple[Decided, ...]


class Activations(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan does with saved tensors, as backward begins.

    Attributes:
        saved_bytes: bytes that the plain step saves.
        freed_bytes: bytes of those that the plan frees.
        replay_bytes: bytes that the plan holds for replays and that the plain step would not hold.
        rows: the module tree, down to the calls inside which nothing is decided.
        small_rows: how many rows are left out because they save next to nothing.
    """

    saved_bytes: int
    freed_bytes: int
    replay_bytes: int
    rows: tuple[DecisionRow, ...]
    small_rows: int


def decide(profile: Profile, plan: Plan) -> Activations:
    """Find what a plan decides about each call of a profile's step. The root's figures are those of the whole step.

    Raises:
        NotApplicable: the plan does not fit the recorded step.

    O(steps and tensors), and for each kept call the cost of working out its replay.
    """
    planned = find_planned(profile, plan)
    freed, replay_bytes = _freed(planned)
    saved = saved_inside(profile, once=True)
    whole_bytes = sum(profile.tensors.bytes[tensor] for tensor in saved[0])
    segments, decisions = _segments(planned), _decisions(planned.index, plan)
    pinned = _named(planned.index, plan.pinned_keep)
    rows: list[DecisionRow] = []
    small_rows, shown = 0, 0  # rows deeper than `shown` are inside a row that is not opened
    for group, place in walk(profile.calls):
        if place["depth"] > shown:
            continue
        shown, row = place["depth"], _row(group, place, profile, saved, freed, segments)
        saved_bytes = row.held_bytes + row.freed_bytes
        if shown and not row.recompute_seconds and saved_bytes <= SMALL * whole_bytes:
            small_rows += 1
            continue
        rows.append(msgspec.structs.replace(row, decided=_decided(group, decisions, planned.index, plan, pinned)))
        # Open a kept row with more than half of the memory, though nothing is decided inside.
        large = 2 * saved_bytes > whole_bytes and [decisions[i] for i in group] == [("kept", "")]
        shown += large or any(decisions[i][0] == "partly" for i in group)
    return Activations(
        saved_bytes=whole_bytes,
        freed_bytes=rows[0].freed_bytes,
        replay_bytes=replay_bytes,
        rows=tuple(rows),
        small_rows=small_rows,
    )


def _segments(planned: Candidates) -> list[tuple[list[int], float]]:
    """Return for each segment its calls, or the call whose own code it covers, and its recompute seconds."""
    index, number = planned.index, {call.key: i for i, call in enumerate(planned.index.profile.calls)}
    return [
        ([number[index.nodes[member].record.key] for member in each.members], each.segment.recompute_seconds)
        for each in planned.replays
    ]


def _row(
    group: Sequence[int],
    place: dict[str, Any],
    profile: Profile,
    saved: Sequence[set[int]],
    freed: set[int],
    segments: Sequence[tuple[list[int], float]],
) -> DecisionRow:
    """Return the row of calls that look alike, with its figures but no decisions yet."""
    calls, sizes = profile.calls, profile.tensors.bytes
    inside = {member for i in group for member in range(i, calls[i].stop)}
    tensors = set().union(*(saved[i] for i in group))
    saved_bytes, freed_bytes = (sum(sizes[tensor] for tensor in each) for each in (tensors, tensors & freed))
    return DecisionRow(
        **place,
        held_bytes=saved_bytes - freed_bytes,
        freed_bytes=freed_bytes,
        recompute_seconds=sum(seconds for members, seconds in segments if inside.issuperset(members)),
        decided=(),
    )


def _freed(candidates: Candidates) -> tuple[set[int], int]:
    """The tensors that only the plain step holds as backward begins; and the bytes that only the plan holds then.

    For tensors of a later forward, this is when the first backward after that forward begins.
    """
    problem, tensors, profile = candidates.problem, candidates.tensors, candidates.index.profile
    plain, planned = simulate(problem, ()), simulate(problem, range(len(problem.candidates)))
    ends = [profile.forward_until(profile.tensors.birth[tensor]) for tensor in tensors]
    backwards = [bisect.bisect_left(candidates.edges, end) for end in ends]
    backward = bisect.bisect_left(candidates.edges, profile.forward_ticks)
    freed: set[int] = set()
    replay_bytes = sum(
        addition.bytes
        for candidate in problem.candidates
        for addition in candidate.additions
        if addition.start < backward < addition.until  # copies of buffers
    )
    for i, (until, backward) in enumerate(zip(plain.saved_until, backwards, strict=True)):
        kept = max(planned.saved_until[i], planned.needed_until[i]) > backward
        if until > backward and not kept:
            freed.add(tensors[i])
        elif kept and until <= backward:
            replay_bytes += problem.tensors[i].bytes
    return freed, replay_bytes


def _decisions(index: Index, plan: Plan) -> list[tuple[Decision, str]]:
    """What a plan decides about each call, and why. The reason of calls in no segment is empty: the caller finds it."""
    numbers = {node.key: number for number, node in enumerate(index.nodes)}
    found: list[tuple[Decision, str]] = [("kept", "")] * len(index.nodes)
    apart: set[int] = set()  # calls of which some child has a decision of its own
    pinned = _named(index, plan.pinned_recompute)
    for segment in plan.segments:
        if not segment.runs_again:
            call = numbers[segment.calls[0]]
            found[call : index.nodes[call].stop] = [("moved", "waits")] * (index.nodes[call].stop - call)
            apart.add(index.nodes[call].parent)
            continue
        kept, skipped = ({numbers[key] for key in keys} for keys in (segment.keep, segment.skip))
        for member in (numbers[key] for key in segment.calls):
            # A pin of the root, number 0, is one of every call.
            own = {0, member, *index.within((member,), index.functions)} - kept - skipped
            found[member] = "recomputed", "chosen" if own.isdisjoint(pinned) else "pinned"
            _decide_inside(index, member, kept, skipped, found)
            apart.add(index.nodes[member].parent)
    for call in reversed(index.call_nodes):
        found[call] = _of_whole(index, call, found, apart)
        if found[call][0] == "partly":
            apart.add(index.nodes[call].parent)
    return [found[call] for call in index.call_nodes]


def _named(index: Index, patterns: Iterable[str]) -> Set[int]:
    """The calls and functions that pins name, by node."""
    return {node for pattern in patterns for node in matched(index, pattern)}


def _decide_inside(
    index: Index, member: int, kept: set[int], skipped: set[int], found: list[tuple[Decision, str]]
) -> None:
    """Set the decision on a member of a segment, and on each call inside it."""
    for node in range(member, index.nodes[member].stop):
        around = found[index.nodes[node].parent][0] if node > member else "recomputed"
        if node in kept or around == "kept":
            found[node] = "kept", "read"
        elif node in skipped or around == "skipped":
            found[node] = "skipped", "not read"
        elif node > member:
            found[node] = "recomputed", "inside"


def _of_whole(index: Index, call: int, found: Sequence[tuple[Decision, str]], apart: set[int]) -> tuple[Decision, str]:
    """Return the decision on a whole call. Its children have theirs already."""
    making = (node for node in index.children[call] if not (index.is_function(node) and index.is_free(node)))
    inside = {found[node][0] for node in making}
    decision, reason = found[call]
    if call in apart or "partly" in inside or (len(inside | {decision}) > 1 and "recomputed" in inside):
        return "partly", reason if decision == "recomputed" else ""
    if decision == "recomputed" and inside and not inside & {"recomputed", "moved"}:
        return ("kept", "read") if "kept" in inside else ("skipped", "not read")
    return decision, reason


def _decided(
    group: Sequence[int], decisions: Sequence[tuple[Decision, str]], index: Index, plan: Plan, pinned: Set[int]
) -> tuple[Decided, ...]:
    """Count calls by decision and reason, most frequent first."""
    found: Counter[tuple[Decision, str]] = Counter()
    for i in group:
        decision, reason = decisions[i]
        found[decision, reason or (_why_kept(index, plan, pinned, i) if decision == "kept" else "")] += 1
    return tuple(Decided(decision=each, reason=why, calls=calls) for (each, why), calls in found.most_common())


def _why_kept(index: Index, plan: Plan, pinned: Set[int], call: int) -> str:
    """Why a call that lies in no segment is kept; `pinned` are the nodes that pins keep."""
    calls = index.profile.calls
    around = call
    while around >= 0:  # a pinned call is kept with all calls inside it
        if index.call_nodes[around] in pinned:
            return "pinned"
        around = calls[around].parent
    if any(refusal.call == calls[call].key for refusal in plan.refused):
        return "refused"
    replay = replay_of(index, (index.call_nodes[call],))
    return "not chosen" if replay is not None and replay.segment.freed_bytes else "frees nothing"


def decision_table(found: Activations, model: str, asked: object = None) -> PageTable:
    """Lay out the module tree: a line for each decision on a row's calls, with bytes in the unit of `asked`."""
    rows = []
    for row in found.rows:
        seconds = format_seconds(row.recompute_seconds) if row.recompute_seconds else "-"
        figures = [format_like(row.held_bytes, asked), format_like(row.freed_bytes, asked), seconds]
        for i, each in enumerate(row.decided):
            number = "all" if each.calls == row.calls else f"{each.calls} of"
            said = each.decision if row.calls == 1 else f"{number} {row.calls} {each.decision}"
            before = [row.label(model), *figures] if i == 0 else ["  " * row.depth, "", "", ""]
            rows.append([*before, f"{said}, {each.reason}" if each.reason else said])
    small = [f"Left out: {counted(found.small_rows, 'row')} that save next to nothing"] if found.small_rows else []
    reasons = dict.fromkeys(each.reason for row in found.rows for each in row.decided if each.reason)
    return PageTable(
        title="Decisions, figures as predicted; recompute: of the segments in a row",
        header=["module", "held", "freed", "recompute", "decision"],
        rows=rows,
        below="\n".join([*small, *(f"  {reason}: {REASONS[reason]}" for reason in reasons)]),
        least=16,
        least_told=["recompute", "held"],
    )
