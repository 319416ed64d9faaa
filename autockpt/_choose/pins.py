"""Pins: calls that must be kept, or recomputed, whatever a solver would choose. No torch.

keep         candidates that cover the call, or a part of it, are dropped
recompute    candidates that cover the call and do not run it again are dropped; the problem requires one that covers it
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from .._data.errors import PinError
from .._data.goal import Patterns, Pins
from .._data.keys import split_pattern
from .._data.tables import CallRecord
from .._index.profile_index import Index
from .._replays.effects import PlannedReplay
from ..solvers.pins import coverable
from ..solvers.units import listed
from .candidates import Candidates

Kind: TypeAlias = Literal["saved", "boundary"]

NEAREST = 3


def pin(candidates: Candidates, pins: Pins) -> Candidates:
    """Return the candidates that honour all pins, and the problem that requires them; O(candidates × pinned calls).

    No part of a kept call runs again: no segment lies around it or inside it. A call to recompute must lie in a segment
    that runs it again; the segment may be larger. If such calls lie inside one another, only the outermost is required.
    A segment may leave alone some of the functions inside the call, but not all of them.

    Raises:
        PinError: a pattern matches no call; a call is to be both kept and recomputed; a call cannot be recomputed.
    """
    moving = candidates.offload.pins if candidates.offload is not None else {}
    if not pins and not moving:
        return candidates
    index, replays = candidates.index, candidates.replays
    moved = _moved(index, moving)
    kept, again = _matches(index, pins.keep), _matches(index, pins.recompute)
    _refuse_both(index, kept, again)
    required = _outermost(index, (*again, *moved))
    keeping = [
        i
        for i, replay in enumerate(replays)
        if replay.segment.offload == "saved" or all(_apart(index, replay, call) for call in kept)
    ]
    honouring = [i for i in keeping if not any(_leaves(index, replays[i], call) for call in again)]
    honouring = _moving(candidates, moved, honouring)
    for call in _outermost(index, again):
        if why := _why_not(candidates, call, keeping, honouring, pins):
            key = index.nodes[call].key
            raise PinError(f"{key!r}, which matches recompute={again[call]!r}, cannot be recomputed: {why}")
    stated = candidates.problem.candidates
    problem = replace(candidates.problem, candidates=tuple(stated[i] for i in honouring), required=required)
    if not coverable(problem, required):
        raise PinError(
            f"{' '.join(Pins(recompute=pins.recompute))} cannot be honoured together: the segments that recompute "
            f"{listed(index.keys(required))} overlap. Pin a call around them instead."
        )
    return replace(candidates, problem=problem, replays=tuple(replays[i] for i in honouring))


def _moved(index: Index, moving: Mapping[Kind, tuple[str, ...]]) -> dict[int, tuple[str, str]]:
    """The calls that must move: what of them, and by which pattern. Of calls inside one another it means the outermost.

    Raises:
        PinError: a pattern matches no call; of one call both is to move.
    """
    found: dict[int, tuple[str, str]] = {}
    for kind, given in moving.items():
        for pattern in given:
            for call in _outermost(index, _matches(index, (pattern,))):
                other, how = found.setdefault(call, (kind, pattern))
                if other != kind:
                    key = index.nodes[call].key
                    raise PinError(f"{key!r} matches {other}={how!r} and {kind}={pattern!r}: only one of both can move")
    return found


def _apart(index: Index, replay: PlannedReplay, call: int) -> bool:
    return replay.stop <= call or index.nodes[call].stop <= replay.members[0]


def _leaves(index: Index, replay: PlannedReplay, call: int) -> bool:
    """Whether nothing of a call runs again in a segment that covers it."""
    if replay.segment.offload == "saved":
        return not _apart(index, replay, call)
    if not replay.alone:
        return False
    functions = {f for f in index.within((call,), index.functions) if not index.is_free(f)}
    return bool(functions) and functions <= replay.alone


def _moving(candidates: Candidates, moved: Mapping[int, tuple[str, str]], honouring: list[int]) -> list[int]:
    """Leave out what runs a call again, or moves it, in another way than it must be moved in."""
    index, replays = candidates.index, candidates.replays
    for call, (kind, pattern) in moved.items():
        ways = {i for i in honouring if replays[i].members == (call,) and replays[i].segment.offload == kind}
        honouring = [i for i in honouring if i in ways or _apart(index, replays[i], call)]
        if not ways:
            why = dict(candidates.refused).get(call, "nothing of it may wait, or other pins are against it")
            raise PinError(f"{index.nodes[call].key!r}, which matches {kind}={pattern!r}, cannot be moved: {why}")
    return honouring


def _why_not(candidates: Candidates, call: int, keeping: list[int], honouring: list[int], pins: Pins) -> str:
    """Say why no candidate that covers a call may be chosen; empty if one may."""
    covering = {
        i
        for i, replay in enumerate(candidates.replays)
        if replay.segment.offload != "saved" and replay.members[0] <= call < replay.stop
    }
    if why := _why_never(candidates, call, covered=bool(covering)):
        return why
    if covering.isdisjoint(keeping):
        return f"whatever recomputes it also runs again what {' '.join(Pins(keep=pins.keep))} wants kept"
    if covering.isdisjoint(honouring):
        return "whatever recomputes it leaves alone another call that is to be recomputed"
    return ""


def refuse_pins(keep: Patterns, recompute: Patterns) -> None:
    """Raise `PinError` for pins that come without a budget: they bind a solver, and no solver runs."""
    if Pins.of(keep, recompute):
        raise PinError("keep= and recompute= bind a solver, and a plan is taken as it is: give a budget with them")


def matches(call: CallRecord, pattern: str) -> bool:
    """Whether a pin's pattern matches a module call. The root has no name, so no pattern matches it."""
    name, occurrence = split_pattern(pattern)
    named = bool(call.name) and fnmatch.fnmatchcase(call.name, name)
    return named and occurrence in ("", str(call.occurrence))


def _matches(index: Index, patterns: Iterable[str]) -> dict[int, str]:
    """The calls that match, by node, each with the first pattern that does."""
    found: dict[int, str] = {}
    for pattern in patterns:
        calls = [call for call in index.call_nodes if matches(index.nodes[call].record, pattern)]
        if not calls:
            raise PinError(f"no call of the step matches {pattern!r}{_nearest(index, *split_pattern(pattern))}")
        for call in calls:
            found.setdefault(call, pattern)
    return found


def _nearest(index: Index, name: str, occurrence: str) -> str:
    """Say which names are nearest. Names are also compared without their first parts, as ``*.mlp``."""
    labels: dict[str, str] = {}
    for call in index.profile.calls[1:]:
        label = call.key if occurrence else call.name
        labels.setdefault(label, label)
        parts = call.name.split(".")
        for first in range(1, len(parts)):
            labels.setdefault(".".join(["*", *parts[first:]]), label)
    wanted = f"{name}#{occurrence}" if occurrence else name
    near = dict.fromkeys(labels[found] for found in difflib.get_close_matches(wanted, labels, n=NEAREST))
    return f"; the nearest names are {', '.join(map(repr, near))}" if near else "; none has a name like it"


def _refuse_both(index: Index, kept: dict[int, str], again: dict[int, str]) -> None:
    """Refuse a call to recompute that is, or lies in, a call to keep."""
    for call, pattern in again.items():
        around = call
        while around >= 0 and around not in kept:
            around = index.nodes[around].parent
        if around >= 0:
            key, other = index.nodes[call].key, index.nodes[around].key
            where = "matches" if around == call else f"lies in {other!r}, which matches"
            raise PinError(
                f"{key!r} matches recompute={pattern!r} and {where} keep={kept[around]!r}: "
                "it cannot be both recomputed and kept"
            )


def _outermost(index: Index, calls: Iterable[int]) -> tuple[int, ...]:
    """The calls that lie in no other of the calls."""
    found: list[int] = []
    for call in sorted(calls):
        if not found or call >= index.nodes[found[-1]].stop:
            found.append(call)
    return tuple(found)


def _why_never(candidates: Candidates, call: int, *, covered: bool) -> str:
    """Why no candidate recomputes a call, whatever the pins; empty where one does."""
    reason = dict(candidates.refused).get(call)
    if reason is not None:
        return f"it cannot be replayed exactly: {reason}"
    if not candidates.index.saves_of((call,)):
        return "it saves nothing for backward, so that running it again would free nothing"
    given = "running it again would free nothing, since it saves only what it was given, and nothing around it can"
    return "" if covered else given
