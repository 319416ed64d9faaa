"""Pins: calls and functions that must be kept, or recomputed, whatever a solver would choose. No torch.

keep         candidates that run it again are dropped
recompute    it is a segment of its own, which holds its own boundary: the problem requires that one, and candidates
             around it are dropped
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..._data.errors import PinError
from ..._data.goal import Patterns, Pins
from ..._data.offload import Moved
from ...solvers.pins import coverable
from ...solvers.units import listed
from ..candidates import Candidates
from ..candidates.by_hand import running, sparing, whole_run
from ..index.profile_index import Index
from ..replay_cost.effects import PlannedReplay, replay_of
from .matching import ROOT, named

ByHand: TypeAlias = Mapping[int, PlannedReplay]
"""For calls and functions to recompute, by node, the replay that their pins ask for."""

FREES_NOTHING = "running it again would free nothing"


def with_pins(candidates: Candidates, pins: Pins) -> Candidates:
    """Return the candidates that honour all pins, and the problem that requires them; O(candidates × pinned calls).

    No part of what is kept runs again. A call to recompute is a segment of its own, so that its boundary is held. Where
    that would free nothing it may lie in a larger one, the smallest that there is. A function to recompute runs in a
    segment of the call whose code calls it. If what is to be recomputed lies inside one another, only the outermost is
    required. A segment may leave alone some of the functions inside a call, but not all of them.

    Raises:
        PinError: a pattern matches nothing; something is to be both kept and recomputed, or cannot be recomputed.
    """
    moving = candidates.offload.pins if candidates.offload is not None else {}
    if not pins and not moving:
        return candidates
    index = candidates.index
    moved, kept = _moved(index, moving), named(index, pins.keep)
    again, by_hand = _whole_model(index, _saving(index, named(index, pins.recompute)))
    _refuse_both(index, kept, again)
    by_hand |= _of_functions(candidates, kept, again)
    candidates = candidates.having([*by_hand.values(), *_sparing(candidates, kept)])
    replays = candidates.replays
    keeping = [i for i, each in enumerate(replays) if all(_spares(index, each, node) for node in kept)]
    honouring = [i for i in keeping if not any(_leaves(index, replays[i], node) for node in again)]
    honouring = _moving(candidates, moved, honouring)
    for node in _outermost(index, again):
        if why := _why_not(candidates, node, keeping, honouring, pins):
            raise PinError(f"{_named(index, node, again[node])}, cannot be recomputed: {why}")
    required = _outermost(index, (*again, *moved))
    for left in (_by_themselves(candidates, required, by_hand, honouring), honouring):
        found = _requiring(candidates, left, required)
        if coverable(found.problem, required):
            return found
    raise PinError(
        f"{' '.join(Pins(recompute=pins.recompute))} cannot be honoured together: the segments that recompute "
        f"{listed(index.keys(required))} overlap. Pin a call around them instead."
    )


def _requiring(candidates: Candidates, left: Sequence[int], required: tuple[int, ...]) -> Candidates:
    """Return some of the candidates, of which a plan must recompute the required calls."""
    stated = tuple(candidates.problem.candidates[i] for i in left)
    problem = replace(candidates.problem, candidates=stated, required=required)
    return replace(candidates, problem=problem, replays=tuple(candidates.replays[i] for i in left))


def _saving(index: Index, again: dict[int, str]) -> dict[int, str]:
    """Leave out functions that save nothing; a pattern that names nothing else is refused."""
    saving = {node: by for node, by in again.items() if not index.is_function(node) or index.saves_of((node,))}
    for node, pattern in again.items():
        if pattern not in saving.values():
            raise PinError(
                f"{_named(index, node, pattern)}, cannot be recomputed: it saves "
                f"nothing for backward, so that {FREES_NOTHING}. Name a function that saves something"
            )
    return saving


def _whole_model(index: Index, again: dict[int, str]) -> tuple[dict[int, str], dict[int, PlannedReplay]]:
    """If the model itself is to be recomputed, return its calls in its place, and for each the replay of all as a run.

    Else return `again` as it is, and no replays.
    """
    if ROOT not in again:
        return again, {}
    run, pattern = whole_run(index), again[ROOT]
    replay, why = None, f"it saves nothing for backward, so that {FREES_NOTHING}"
    if reason := index.reason(run):
        key = next((index.nodes[call].key for call in run if index.reason((call,))), index.nodes[run[0]].key)
        why = f"{key!r} cannot be replayed exactly: {reason}"
    elif run:
        replay, why = replay_of(index, run), FREES_NOTHING
    if replay is None or not replay.segment.freed_bytes:
        raise PinError(f"the whole model, which recompute={pattern!r} names, cannot be recomputed: {why}")
    saving = [call for call in run if index.saves_of((call,))]
    return dict.fromkeys(saving, pattern), dict.fromkeys(saving, replay)


def _of_functions(candidates: Candidates, kept: Collection[int], again: Collection[int]) -> dict[int, PlannedReplay]:
    """Work out the replays of functions to recompute: in calls that hold all else. Those of the model are calls."""
    index, outer = candidates.index, _outermost(candidates.index, again)
    homes = (index.nodes[f].parent for f in outer if index.is_function(f))
    found: dict[int, PlannedReplay] = {}
    for home in _outermost(index, homes):
        if home == ROOT or index.reason((home,)):
            continue
        inside = [node for node in outer if home <= node < index.nodes[home].stop]
        replay = running(index, home, index.within(tuple(inside), index.functions), kept)
        if replay is not None:
            found |= dict.fromkeys(inside, replay)
    return found


def _sparing(candidates: Candidates, kept: Collection[int]) -> Iterator[PlannedReplay]:
    """Work out the calls that may be recomputed but for functions to keep inside them."""
    index = candidates.index
    functions = sorted(node for node in kept if index.is_function(node))
    for each in candidates.replays if functions else ():
        if len(each.members) == 1 and each.move is None and not each.alone and not index.is_function(each.members[0]):
            inside = [f for f in index.within(each.members, functions) if not _spares(index, each, f)]
            found = sparing(index, each.members[0], inside) if inside else None
            if found is not None:
                yield found


def _moved(index: Index, moving: Mapping[Moved, tuple[str, ...]]) -> dict[int, tuple[str, str]]:
    """The calls that must move: what of them, and by which pattern. Of calls inside one another it means the outermost.

    Raises:
        PinError: a pattern matches no call; of one call both is to move.
    """
    found: dict[int, tuple[str, str]] = {}
    for kind, given in moving.items():
        for pattern in given:
            for call in _outermost(index, named(index, (pattern,))):
                other, how = found.setdefault(call, (kind, pattern))
                if other != kind:
                    key = index.nodes[call].key
                    raise PinError(f"{key!r} matches {other}={how!r} and {kind}={pattern!r}: only one of both can move")
    return found


def _apart(index: Index, replay: PlannedReplay, node: int) -> bool:
    return replay.stop <= node or index.nodes[node].stop <= replay.members[0]


def _spares(index: Index, replay: PlannedReplay, node: int) -> bool:
    """Whether no part of a call or function runs again in a segment."""
    if not replay.segment.runs_again or _apart(index, replay, node):
        return True
    if index.is_function(node):
        return node in replay.alone or index.is_free(node) or not index.begins(node, replay.end)
    return any(whole <= node < index.nodes[whole].stop for whole in replay.whole)


def _leaves(index: Index, replay: PlannedReplay, node: int) -> bool:
    """Whether nothing of a call or function runs again in a segment that covers it."""
    if not replay.segment.runs_again:
        return not _apart(index, replay, node)
    if not replay.alone:
        return False
    functions = {f for f in index.within((node,), index.functions) if not index.is_free(f)}
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


def _by_themselves(
    candidates: Candidates, required: Sequence[int], by_hand: ByHand, honouring: Sequence[int]
) -> list[int]:
    """Leave out what recomputes a required call within something larger, where there is a segment of its own.

    Else its own boundary would not be held. Where there is none, the smallest segments around it are left.
    """
    index, replays = candidates.index, candidates.replays
    ways: set[int] = set()
    for node in required:
        around = [i for i in honouring if replays[i].members[0] <= node < replays[i].stop]
        own = [i for i in around if replays[i].members == (node,)]
        if node in by_hand:
            asked = by_hand[node].members, by_hand[node].alone
            own = [i for i in around if (replays[i].members, replays[i].alone) == asked] or own
        smallest = min((replays[i].stop - replays[i].members[0] for i in around), default=0)
        ways.update(own or (i for i in around if replays[i].stop - replays[i].members[0] == smallest))
    return [i for i in honouring if i in ways or all(_apart(index, replays[i], node) for node in required)]


def _why_not(candidates: Candidates, node: int, keeping: list[int], honouring: list[int], pins: Pins) -> str:
    """Say why no candidate that covers a call or function may be chosen; empty if one may."""
    covering = {
        i
        for i, replay in enumerate(candidates.replays)
        if replay.segment.runs_again and replay.members[0] <= node < replay.stop
    }
    if why := _why_never(candidates, node, covered=bool(covering)):
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


def _refuse_both(index: Index, kept: dict[int, str], again: dict[int, str]) -> None:
    """Refuse something to recompute that is, or lies in, a call to keep."""
    for node, pattern in again.items():
        around = node
        while around >= 0 and around not in kept:
            around = index.nodes[around].parent
        if around >= 0:
            other = repr(index.nodes[around].key) if around else "the model"
            where = "matches" if around == node else f"lies in {other}, which matches"
            raise PinError(
                f"{index.nodes[node].key!r} matches recompute={pattern!r} and {where} keep={kept[around]!r}: "
                "it cannot be both recomputed and kept"
            )


def _named(index: Index, node: int, pattern: str) -> str:
    """Return how a message names something to recompute; `pattern` is what the user wrote."""
    key = repr(index.nodes[node].key)
    return f"{key}, which matches recompute={pattern!r}" if pattern else f"{key} of the model, which recompute='' names"


def _outermost(index: Index, nodes: Iterable[int]) -> tuple[int, ...]:
    """Return those of the nodes that lie inside no other one of these nodes."""
    found: list[int] = []
    for node in sorted(nodes):
        if not found or node >= index.nodes[found[-1]].stop:
            found.append(node)
    return tuple(found)


def _why_never(candidates: Candidates, node: int, *, covered: bool) -> str:
    """Why no candidate recomputes a call or function, whatever the pins; empty where one does."""
    index, refused = candidates.index, dict(candidates.refused)
    if index.is_function(node):
        refused |= {f: why for f, why in index.refused.items() if f == node}
        node = node if node in refused or covered else index.nodes[node].parent
    reason = refused.get(node)
    if reason is not None:
        return f"it cannot be replayed exactly: {reason}"
    if not index.saves_of((node,)):
        return f"it saves nothing for backward, so that {FREES_NOTHING}"
    return "" if covered else f"{FREES_NOTHING}, since it saves only what it was given, and nothing around it can"
