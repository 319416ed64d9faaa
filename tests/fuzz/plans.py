"""From a choice to a plan, through the candidates that a solver would get."""

from __future__ import annotations

import msgspec

from autockpt import Plan, Profile, Segment
from autockpt._choose.candidates import find_candidates
from autockpt._choose.candidates.glue import glue_of, is_glue, with_glue
from autockpt._choose.solve import _segment
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
state outside of tensors, generators and the module tree. `autockpt._run.frames` documents them. For every other reason
a plan by hand must be exact or fail aloud."""

OTHER_WAYS = frozenset({"Branches", "LeavesByChance", "LeavesByCount"})
"""Nodes by which a step may make other calls than the recorded one did. There a plan may end in an error."""

HIDDEN_STATE = frozenset(
    {"AveragedByData", "Calls", "CallsMatter", "FillsCache", "GivesGenerator", "HostRandom", "LeavesByCount"}
    | {"LeavesTensor", "LeavesTensors", "OwnGenerator", "Remembers"}
)
"""Nodes that the recorder refuses for state that a replay does not see, if it sees them run at all."""

Span = tuple[int, ...]


def chosen_plan(case: Case, profile: Profile) -> Plan:
    """Make the plan that a case asks for: of candidates, by hand, or blind of any calls and runs of siblings."""
    choice = case.choice
    if case.calls is None and choice.units in ("rules", "names"):
        make = by_rules if choice.units == "rules" else by_names
        profile = with_all_glue(profile, blind=choice.units == "names")
        worth = worth_drawing(profile)
        taken = _taken(profile, worth, choice)
        segments = [make(profile, worth[number], choice.dice) for number in taken]
    elif choice.blind or case.calls is not None:
        profile = with_all_glue(profile, blind=True)
        index = {call.key: number for number, call in enumerate(profile.calls)}
        named = [tuple(index[key] for key in calls) for calls in case.calls or ()]
        spans = named or _blind(profile)
        wanted = range(len(named)) if named else _taken(profile, spans, choice)
        segments = [_by_hand(profile, spans[number]) for number in wanted]
        for chosen in ("keep", "skip"):
            for number, units in enumerate(getattr(case, chosen)):
                segments[number] = msgspec.structs.replace(segments[number], **{chosen: units})
    else:
        profile = without_host(profile, choice.dice) if choice.units == "menus" else profile
        candidates = find_candidates(profile)
        order = list(range(len(candidates.runs)))
        if choice.units:
            order = [number for number, run in enumerate(candidates.runs) if run.idle.keep or run.idle.skip] or order
        taken = _taken(candidates.profile, [candidates.runs[number].members for number in order], choice)
        segments = [_segment(candidates, order[number]) for number in taken]
    if choice.unnamed:
        segments = [Segment(calls=segment.calls, keep=segment.keep, skip=segment.skip) for segment in segments]
    return Plan(segments=tuple(segments))


def with_all_glue(profile: Profile, *, blind: bool) -> Profile:
    """State torch functions as calls at every depth; blindly also those that cannot run again by themselves."""
    if blind:
        left = tuple(each for each in profile.refusals if each.what != "function")
        profile = msgspec.structs.replace(profile, refusals=left)
    return with_glue(profile, glue_of(profile, range(len(profile.calls))))[0]


def reasons_beyond_replay(plan: Plan, profile: Profile) -> list[str]:
    """Return why segments of a plan need not be exact; empty if all of it must be."""
    functions = profile.functions
    against = {
        f"{profile.calls[functions.call[f]].key}/{functions.key(f)}": reason
        for f, reason in profile.refused("function").items()
    }
    against |= {profile.calls[call].key: reason for call, reason in profile.refused("call").items()}
    profile = with_all_glue(profile, blind=True)
    index = {call.key: number for number, call in enumerate(profile.calls)}
    found = []
    for key in (key for segment in plan.segments for key in segment.calls):
        start = index[key]
        inside = profile.calls[start : profile.calls[start].stop]
        said = [against.get(call.key, "") for call in inside]
        found += [reason for each in said for reason in NOT_SEEN if each.startswith(reason)]
    return found


def _blind(profile: Profile) -> list[Span]:
    """Every call and every run of siblings, whatever speaks against it; more than once where something does."""
    children: dict[int, list[int]] = {}
    for number, call in enumerate(profile.calls):
        if call.parent >= 0:
            children.setdefault(call.parent, []).append(number)
    spans = [
        tuple(family[first:last])
        for family in children.values()
        for first in range(len(family))
        for last in range(first + 1, len(family) + 1)
    ]
    refused = profile.refused("call")
    doubtful = [
        span
        for span in spans
        if any(member in refused or any(a.mutated for a in profile.calls[member].arguments) for member in span)
    ]
    return [*spans, *doubtful, *doubtful]


def _taken(profile: Profile, spans: list[Span], choice: Choice) -> list[int]:
    """Take spans one after the other as long as they do not overlap; return their numbers in forward order."""
    order = [pick % len(spans) for pick in choice.picks] if spans else []
    free = [True] * len(profile.calls)
    taken = []
    for number in [*order, *(range(len(spans)) if choice.fill else [])]:
        start, stop = spans[number][0], profile.calls[spans[number][-1]].stop
        if all(free[start:stop]):
            free[start:stop] = [False] * (stop - start)
            taken.append(number)
    return sorted(taken, key=lambda number: spans[number])


def _by_hand(profile: Profile, span: Span) -> Segment:
    calls = profile.calls
    inside = calls[span[0] : calls[span[-1]].stop]
    buffers = tuple(dict.fromkeys(name for call in inside for name in call.buffers))
    return Segment(
        calls=tuple(calls[member].key for member in span),
        parent=calls[calls[span[0]].parent].key,
        buffers=None if any(is_glue(calls[member]) for member in span) else buffers,  # of which functions tell nothing
    )
