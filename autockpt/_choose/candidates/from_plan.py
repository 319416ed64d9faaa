"""A plan as candidates: what its segments hold, restore and cost in the step that a profile recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec

from ..._data.errors import NotApplicable
from ..._data.offload import ASSUMED_HOST_RATE, HOST, Offload
from ..._data.plan import Plan, Segment
from ..._data.profile import Profile
from ...solvers.units import listed
from ..index.profile_index import Index, Members
from ..moves.road import Road
from ..replay_cost.effects import PlannedReplay, replay_of
from ..replay_cost.parts import Inner, in_parts
from ..replay_cost.units import left_alone
from . import Candidates
from .moves import move_of, priced

UNPRICED = Offload(where=HOST, write_rate=ASSUMED_HOST_RATE, read_rate=ASSUMED_HOST_RATE)
"""What moves cost in a plan by hand, which does not say it."""


def find_planned(profile: Profile, plan: Plan) -> Candidates:
    """State the problem in which a plan's segments are all the candidates, but those that replay and move nothing.

    Where a segment keeps or skips a module call that can be no unit, the functions inside are kept or skipped.

    Raises:
        NotApplicable: the step makes no such calls, they are no run of siblings, or no such functions lie in them.
    """
    return planned_in(Index(profile), plan)


def planned_in(index: Index, plan: Plan) -> Candidates:
    """Do as `find_planned` in a step that is laid out already."""
    able = (number for number in range(len(index.nodes)) if not (index.is_function(number) and number in index.refused))
    named = {index.nodes[number].key: number for number in able}
    calls = {named[key] for segment in plan.segments for key in segment.calls if key in named}
    runs = [(_members(index, named, calls, segment), segment) for segment in plan.segments]
    rates = plan.offload or UNPRICED
    road = Road(index.profile, rates) if rates.is_host and any(segment.offload for segment in plan.segments) else None
    replays = [_replay(index, named, members, segment, rates, road) for members, segment in runs]
    found = [replay for replay in replays if replay is not None]
    return Candidates.of(index, found, offload=plan.offload, road=road)


def _replay(
    index: Index, named: Mapping[str, int], members: Members, segment: Segment, rates: Offload, road: Road | None
) -> PlannedReplay | None:
    """Return what a segment is in the recorded step; None for nothing: no replay runs, or nothing is moved."""
    until = None if road is None else _until(index, members, segment)
    if segment.goes_in_parts and not any(index.passes.keeping):  # else all is replayed at once
        return in_parts(index, *_inner(index, named, members, segment), {})
    replay = replay_of(index, members, *_idle(index, members, segment)) if segment.runs_again else None
    if replay is not None:
        nested = msgspec.structs.replace(replay.segment, cuts=segment.cuts, inner=segment.inner)
        replay = replace(replay, segment=nested)
    moved = move_of(index, segment.offload, members, replay, rates)
    return replay if moved is None else priced(index, *moved, rates, road, until)


def _inner(index: Index, named: Mapping[str, int], members: Members, segment: Segment) -> Inner:
    """Lay a segment out with those inside it."""
    inner = []
    for each in segment.inner:
        found = _members(index, named, (), each)
        if not index.covers(members, found[0]) or found[0] in members:
            raise NotApplicable(
                f"{each.calls[0]!r} is not inside the segment of {segment.calls[0]!r} in the recorded step of "
                f"{index.profile.model}: give the profile that the plan was made from"
            )
        inner.append(_inner(index, named, found, each))
    return Inner(members, segment.cuts or (0,) * len(members), tuple(inner))


def _until(index: Index, members: Members, segment: Segment) -> int | None:
    """Find the call that a segment's move may take as long as."""
    if segment.until is None:
        return None
    for number, call in enumerate(index.profile.calls):
        if call.key == segment.until and call.exit >= index.nodes[members[-1]].exit:
            return number
    raise NotApplicable(
        f"the plan moves tensors of {segment.calls[0]!r} until {segment.until!r} has ended, and the recorded step of "
        f"{index.profile.model} makes no such call that ends after it: give the profile that the plan was made from"
    )


def _members(index: Index, named: Mapping[str, int], calls: Collection[int], segment: Segment) -> Members:
    """Find the calls of a segment; a function is one of the siblings where it is a call of some segment."""
    model = index.profile.model
    for call in segment.calls:
        if call not in named:
            raise NotApplicable(
                f"the plan recomputes {call!r}, and the recorded step of {model} makes no such call: "
                "give the profile that the plan was made from"
            )
    members = tuple(named[call] for call in segment.calls)
    parent = index.nodes[members[0]].parent
    siblings = index.children[parent] if parent >= 0 else [0]
    siblings = [node for node in siblings if not index.is_function(node) or node in calls]
    first = siblings.index(members[0])
    if tuple(siblings[first : first + len(members)]) != members:
        raise NotApplicable(
            f"the recorded step of {model} does not make the calls from {segment.calls[0]!r} to {segment.calls[-1]!r} "
            "one after the other from the same call, so they are no segment of it"
        )
    return members


def _idle(index: Index, members: Members, segment: Segment) -> tuple[frozenset[int], frozenset[int]]:
    """Find the functions of a segment that do not run again, and the module calls that it names as units."""
    keep, skip, inside_of = _named(index, members, segment)
    idle = frozenset[int]().union(*inside_of.values())
    calls = frozenset(node for node in keep | skip if not index.is_function(node))
    left = left_alone(index, members, idle, calls)
    kept, skipped = ({f for unit in units for f in _functions(index, unit)} for units in (left.keep, left.skip))
    whole = {f for node in keep if not index.is_function(node) for f in inside_of[node]}
    may_keep, may_skip = ({f for node in nodes for f in inside_of[node]} for nodes in (keep, skip))
    # What no replay comes to needs no name, and may have one; of a call kept as a whole not all need be read.
    if not (kept <= may_keep <= whole | kept and skipped <= may_skip | whole):
        raise NotApplicable(
            f"the segment of {segment.calls[0]!r} keeps or skips units that the recorded step of {index.profile.model} "
            f"does not have there, or in another way: of the same functions it would keep "
            f"[{', '.join(index.keys(left.keep))}] and skip [{', '.join(index.keys(left.skip))}]. Give the profile "
            "that the plan was made from, or write these"
        )
    return idle, calls


def _named(index: Index, members: Members, segment: Segment) -> tuple[set[int], set[int], dict[int, set[int]]]:
    """Find what a segment keeps and what it skips, by node, and the functions inside each."""
    inside = {index.nodes[n].key: n for member in members for n in range(member, index.nodes[member].stop)}
    unknown = [key for key in segment.units if key not in inside]
    keep, skip = ({inside[key] for key in keys if key in inside} for keys in (segment.keep, segment.skip))
    inside_of = {node: _functions(index, node) for node in keep | skip}
    unknown += [index.nodes[node].key for node, found in inside_of.items() if not found]
    if unknown:
        raise NotApplicable(
            f"the segment of {segment.calls[0]!r} keeps or skips {listed(unknown)}, and nothing of that "
            f"name ran in it in the recorded step of {index.profile.model}: take it out, or give the profile that the "
            "plan was made from"
        )
    return keep, skip, inside_of


def _functions(index: Index, node: int) -> set[int]:
    """The functions that a name stands for: one, or all in a module call but for views."""
    return {f for f in index.within((node,), index.functions) if f == node or not index.is_free(f)}
