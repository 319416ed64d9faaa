"""From a choice to a plan, through the candidates that a solver would get."""

from __future__ import annotations

import random

import msgspec

from autockpt import Plan, Profile, Segment
from tests.doors import ProfileIndex, find_candidates, is_inside, segments_of, sibling_rows
from tests.fuzz.hidden import HIDDEN
from tests.fuzz.states import EXACT_STATES, STATES
from tests.fuzz.tree import Case, Choice
from tests.fuzz.units import by_names, by_rules, without_host, worth_drawing

__all__ = ["HIDDEN_STATE", "NOT_SEEN", "OTHER_WAYS", "chosen_plan", "reasons_beyond_replay"]

NOT_SEEN = (
    "changes an attribute of a module",
    "changes an argument of type",
    "draws from a torch.Generator of its own",
    "draws from the random generators of Python or numpy",
    "reads a tensor that is no argument, parameter or buffer",
    "the model made other calls when its forward ran a second time",
    "is given an object whose state a replay does not know",
)
"""How the reasons begin for which a replay may differ without noticing, if a plan by hand asks for it all the same:
state outside of tensors, generators and the module tree. The package of the frames documents them.
For every other reason a plan by hand must be exact or fail aloud."""

OTHER_WAYS = frozenset({"Branches", "Layerdrop", "LeavesByChance", "LeavesByCount"})
"""Nodes by which a step may make other calls than the recorded one did. There a plan may end in an error."""

HIDDEN_STATE = frozenset(
    {"AveragedByData", "Calls", "CallsMatter", "FillsCache", "GivesGenerator", "HostRandom", "LeavesByCount"}
    | {"LeavesTensor", "LeavesTensors", "OwnGenerator", "Remembers"}
    | {"Empties", "Layerdrop", *HIDDEN, *(STATES.keys() - EXACT_STATES)}
)
"""Nodes that the recorder refuses for state that a replay does not see, if it sees them run at all."""

Span = tuple[int, ...]


def chosen_plan(case: Case, profile: Profile) -> Plan:
    """Make the plan that a case asks for: of candidates, by hand, or blind of any calls and runs of siblings."""
    choice = case.choice
    if case.calls is None and choice.units in ("rules", "names"):
        make = by_rules if choice.units == "rules" else by_names
        index, rows = _every_sibling(profile, blind=choice.units == "names")
        worth = worth_drawing(index, rows)
        taken = _taken(index, worth, choice)
        segments = [make(index, worth[number], choice.dice) for number in taken]
    elif choice.blind or case.calls is not None:
        index, rows = _every_sibling(profile, blind=True)
        by_key = {node.key: number for number, node in enumerate(index.nodes)}
        named = [tuple(by_key[key] for key in calls) for calls in case.calls or ()]
        spans = named or _blind(index, rows)
        wanted = range(len(named)) if named else _taken(index, spans, choice)
        segments = [_by_hand(index, spans[number]) for number in wanted]
        for chosen in ("keep", "skip", "cuts", "inner"):
            for number, units in enumerate(getattr(case, chosen)):
                segments[number] = msgspec.structs.replace(segments[number], **{chosen: units})
        if case.calls is not None:
            return _plan(segments, choice)
    else:
        profile = without_host(profile, choice.dice) if choice.units == "menus" else profile
        candidates = find_candidates(profile)
        order = list(range(len(candidates.replays)))
        if choice.units:
            order = [number for number, each in enumerate(candidates.replays) if each.alone] or order
        taken = _taken(candidates.index, [candidates.replays[number].members for number in order], choice)
        index, segments = candidates.index, list(segments_of(candidates, [order[number] for number in taken]))
    if choice.cuts:
        segments = [nested(index, segment, choice) for segment in segments]
    return _plan(segments, choice)


def _plan(segments: list[Segment], choice: Choice) -> Plan:
    if choice.unnamed:
        segments = [_unnamed(segment) for segment in segments]
    return Plan(segments=tuple(segments))


def _unnamed(segment: Segment) -> Segment:
    inner = tuple(map(_unnamed, segment.inner))
    return Segment(calls=segment.calls, keep=segment.keep, skip=segment.skip, cuts=segment.cuts, inner=inner)


def nested(index: ProfileIndex, segment: Segment, choice: Choice) -> Segment:
    """Draw parts in which a segment's replay goes, and what inside has replays of its own, to any depth."""
    if segment.keep or segment.skip:
        return segment
    by_key = {node.key: number for number, node in enumerate(index.nodes)}
    members = tuple(by_key[key] for key in segment.calls)
    return _nested(index, segment, members, choice.blind, random.Random(choice.dice))


def _nested(index: ProfileIndex, segment: Segment, members: Span, blind: bool, dice: random.Random) -> Segment:
    """Draw them blindly anywhere, else where parts can begin, and what can be replayed by itself."""
    able = [
        blind or not (index.reason(members[:place]) or index.reason(members[place:])) for place in range(len(members))
    ]
    cuts = [dice.choice((0, 1, 1, 2, 3)) if place and able[place] else 0 for place in range(len(members))]
    cuts = [min(level, len(members) - 1) for level in cuts]
    inner = tuple(each for member in members for each in _inside(index, member, blind, dice))
    return msgspec.structs.replace(segment, cuts=tuple(cuts) if any(cuts) else (), inner=inner)


def _inside(index: ProfileIndex, call: int, blind: bool, dice: random.Random) -> list[Segment]:
    """Draw what is recomputed again inside a call: runs of what it calls, or of what those call."""
    row = [child for child in index.children[call] if not index.is_function(child)]
    if not all(is_inside(index, child, call) for child in row):
        return []
    found = []
    while row:
        length = dice.choice((1, 1, 2, 3))
        run, row = tuple(row[:length]), row[length:]
        if dice.random() < 0.6 and (blind or not index.reason(run)):
            found.append(_nested(index, _by_hand(index, run), run, blind, dice))
        else:
            found += [each for child in run for each in _inside(index, child, blind, dice)]
    return found


def _every_sibling(profile: Profile, *, blind: bool) -> tuple[ProfileIndex, list[list[int]]]:
    """Lay a profile out, with torch functions among the siblings at every depth; blindly those too that cannot run."""
    if blind:
        left = tuple(each for each in profile.refusals if each.what != "function")
        profile = msgspec.structs.replace(profile, refusals=left)
    index = ProfileIndex(profile)
    return index, sibling_rows(index, index.call_nodes)


def reasons_beyond_replay(plan: Plan, profile: Profile) -> list[str]:
    """Return why segments of a plan need not be exact; empty if all of it must be."""
    functions = profile.functions
    against = {
        f"{profile.calls[functions.call[f]].key}/{functions.key(f)}": reason
        for f, reason in profile.refused("function").items()
    }
    against |= {profile.calls[call].key: reason for call, reason in profile.refused("call").items()}
    nodes = ProfileIndex(profile).nodes
    by_key = {node.key: number for number, node in enumerate(nodes)}
    found = []
    for key in (key for segment in plan.segments for key in segment.calls):
        start = by_key[key]
        said = [
            against.get(node.key, "")
            for node in nodes[start : nodes[start].stop]
            if node.function < 0 or node.key == key
        ]
        found += [reason for each in said for reason in NOT_SEEN if each.startswith(reason)]
    return found


def _blind(index: ProfileIndex, rows: list[list[int]]) -> list[Span]:
    """Every call and every run of siblings, whatever speaks against it; more than once where something does."""
    spans = [
        tuple(row[first:last]) for row in rows for first in range(len(row)) for last in range(first + 1, len(row) + 1)
    ]
    doubtful = [
        span
        for span in spans
        if any(member in index.refused or any(a.mutated for a in index.nodes[member].arguments) for member in span)
    ]
    return [*spans, *doubtful, *doubtful]


def _taken(index: ProfileIndex, spans: list[Span], choice: Choice) -> list[int]:
    """Take spans one after the other as long as they do not overlap; return their numbers in forward order."""
    order = [pick % len(spans) for pick in choice.picks] if spans else []
    free = [True] * len(index.nodes)
    taken = []
    for number in [*order, *(range(len(spans)) if choice.fill else [])]:
        start, stop = spans[number][0], index.nodes[spans[number][-1]].stop
        if all(free[start:stop]):
            free[start:stop] = [False] * (stop - start)
            taken.append(number)
    return sorted(taken, key=lambda number: spans[number])


def _by_hand(index: ProfileIndex, span: Span) -> Segment:
    nodes, changing = index.nodes, index.within(span, index.changing)
    buffers = tuple(dict.fromkeys(name for node in changing for name in nodes[node].record.buffers))
    return Segment(
        calls=tuple(nodes[member].key for member in span),
        parent=nodes[nodes[span[0]].parent].key,
        buffers=None if any(map(index.is_function, span)) else buffers,  # of which functions tell nothing
    )
