"""Pins: calls that shall be kept, or recomputed, whatever a solver would choose. No torch.

keep         candidates that would run the call again are dropped
recompute    candidates that leave it alone are dropped, and the problem requires that one covers it
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterable
from dataclasses import replace

from .._data.errors import PinError
from .._data.profile import Profile
from .._data.tables import CallRecord
from ..solvers.pins import coverable
from .candidates import Candidates, Run, is_glue

Patterns = str | Iterable[str]
"""Qualified names of modules, in which ``*`` (dots too), ``?`` and ``[…]`` stand for parts; ``#1`` after a name means
the second call of the module in a step, and none means all of its calls. One alone may be given bare."""

NEAREST = 3


def pin(candidates: Candidates, *, keep: Patterns = (), recompute: Patterns = ()) -> Candidates:
    """Bind whoever chooses among candidates to pins.

    Args:
        candidates: all that there are.
        keep: patterns of calls that must not run again. A selective segment around one may keep or skip it as a unit;
            what such a unit saved of its arguments is brought back by the replay all the same.
        recompute: patterns of calls that a segment must cover and run again; a larger one will do. Of calls inside
            one another, the outermost counts. Units inside it may be kept unless they match as well.

    Returns:
        The candidates that honour all pins, and the problem that requires them.

    Raises:
        PinError: a pattern matches no call; one call is to be kept and recomputed; one cannot be recomputed.

    O(candidates × pinned calls).
    """
    keep, recompute = _patterns(keep), _patterns(recompute)
    if not (keep or recompute):
        return candidates
    profile = candidates.profile
    kept, again = _matches(profile, keep), _matches(profile, recompute)
    _refuse_both(profile, kept, again)
    kept_calls = {inner for call in kept for inner in range(call, profile.calls[call].stop)}
    everything = candidates.problem.candidates
    alone = [_left_alone(profile, run) for run in candidates.runs]
    keeping = [i for i, c in enumerate(everything) if kept_calls.isdisjoint({*range(c.start, c.stop)} - alone[i])]
    honouring = [i for i in keeping if alone[i].isdisjoint(again)]
    required = _outermost(profile, again)
    for call in required:
        _refuse_if_kept_anyway(profile, candidates, call, again[call], keep, keeping, honouring)
    problem = replace(
        candidates.problem,
        candidates=tuple(everything[i] for i in honouring),
        required=required,
    )
    if not coverable(problem, required):
        raise PinError(
            f"{_named('recompute', recompute)} cannot be honoured together: the segments that recompute "
            f"{', '.join(repr(profile.calls[call].key) for call in required)} overlap. Pin a call around them instead."
        )
    return replace(
        candidates,
        problem=problem,
        runs=tuple(candidates.runs[i] for i in honouring),
        pinned_keep=keep,
        pinned_recompute=recompute,
    )


def named_pins(candidates: Candidates) -> tuple[str, ...]:
    """Write the pins that bind candidates as they were given: ``keep='lm_head'``; none where there are none."""
    pins = (("keep", candidates.pinned_keep), ("recompute", candidates.pinned_recompute))
    return tuple(_named(option, patterns) for option, patterns in pins if patterns)


def refuse_pins(keep: Patterns, recompute: Patterns) -> None:
    """Refuse pins where nothing is solved for them to bind.

    Raises:
        PinError: there are any.
    """
    if _patterns(keep) or _patterns(recompute):
        raise PinError("keep= and recompute= bind a solver, and a plan is taken as it is: give a budget with them")


def _patterns(given: Patterns) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(given)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise PinError(f"a pin is a pattern of qualified names, such as '*.mlp', got {pattern!r}")
    return patterns


def _matches(profile: Profile, patterns: Iterable[str]) -> dict[int, str]:
    """The calls that match, each with the first pattern that does; the root has no name and never does."""
    found: dict[int, str] = {}
    for pattern in patterns:
        calls = [i for i, call in enumerate(profile.calls) if matches(call, pattern)]
        if not calls:
            raise PinError(f"no call of the step matches {pattern!r}{_nearest(profile, *_split(pattern))}")
        for call in calls:
            found.setdefault(call, pattern)
    return found


def matches(call: CallRecord, pattern: str) -> bool:
    """Whether a pin's pattern matches a module call; the root has no name, and none does."""
    name, occurrence = _split(pattern)
    named = bool(call.name) and not is_glue(call) and fnmatch.fnmatchcase(call.name, name)
    return named and occurrence in ("", str(call.occurrence))


def _split(pattern: str) -> tuple[str, str]:
    """The name in a pattern, and the occurrence; empty for all of them."""
    name, sharp, occurrence = pattern.rpartition("#")
    return (name, occurrence) if sharp and occurrence.isdecimal() else (pattern, "")


def _nearest(profile: Profile, name: str, occurrence: str) -> str:
    """Say which names there are; those whose last parts resemble a pattern that begins with a star count too."""
    labels: dict[str, str] = {}
    for call in profile.calls[1:]:
        if is_glue(call):
            continue
        label = call.key if occurrence else call.name
        labels.setdefault(label, label)
        parts = call.name.split(".")
        for first in range(1, len(parts)):
            labels.setdefault(".".join(["*", *parts[first:]]), label)
    wanted = f"{name}#{occurrence}" if occurrence else name
    near = dict.fromkeys(labels[found] for found in difflib.get_close_matches(wanted, labels, n=NEAREST))
    return f"; the nearest names are {', '.join(map(repr, near))}" if near else "; none has a name like it"


def _refuse_both(profile: Profile, kept: dict[int, str], again: dict[int, str]) -> None:
    """Refuse a call to recompute that is, or lies in, a call to keep."""
    for call, pattern in again.items():
        around = call
        while around >= 0 and around not in kept:
            around = profile.calls[around].parent
        if around >= 0:
            where = "matches" if around == call else f"lies in {profile.calls[around].key!r}, which matches"
            raise PinError(
                f"{profile.calls[call].key!r} matches recompute={pattern!r} and {where} keep={kept[around]!r}: "
                "it cannot be both recomputed and kept"
            )


def _left_alone(profile: Profile, run: Run) -> set[int]:
    """Calls that a segment covers and does not run again: its units, and what lies in them."""
    calls = profile.calls
    names = {key for key in (*run.idle.keep, *run.idle.skip) if "/" not in key}
    units = [call for call in range(run.members[0], calls[run.members[-1]].stop) if names and calls[call].key in names]
    return {inner for unit in units for inner in range(unit, calls[unit].stop)}


def _outermost(profile: Profile, calls: Iterable[int]) -> tuple[int, ...]:
    """Those of the calls that lie in no other of them."""
    found: list[int] = []
    for call in sorted(calls):
        if not found or call >= profile.calls[found[-1]].stop:
            found.append(call)
    return tuple(found)


def _refuse_if_kept_anyway(
    profile: Profile,
    candidates: Candidates,
    call: int,
    pattern: str,
    keep: Collection[str],
    keeping: Collection[int],
    honouring: Collection[int],
) -> None:
    """Refuse to recompute a call that no candidate recomputes, with the reason."""

    def covered(among: Iterable[int]) -> bool:
        spans = (candidates.problem.candidates[i] for i in among)
        return any(one.start <= call < one.stop for one in spans)

    saves = any(call <= saver < profile.calls[call].stop for saver in profile.saves.call)
    reason = dict(candidates.refused).get(call)
    if reason is not None:
        why = f"it cannot be replayed exactly: {reason}"
    elif not saves:
        why = "it saves nothing for backward, so that running it again would free nothing"
    elif not covered(range(len(candidates.runs))):
        why = "it saves only what it was given, so that running it again would free nothing, and nothing around it can"
    elif not covered(keeping):
        why = f"whatever recomputes it also runs again what {_named('keep', keep)} wants kept"
    elif not covered(honouring):
        why = "whatever recomputes it leaves alone another call that is to be recomputed"
    else:
        return
    raise PinError(f"{profile.calls[call].key!r}, which matches recompute={pattern!r}, cannot be recomputed: {why}")


def _named(option: str, patterns: Collection[str]) -> str:
    """Write pins for people: ``keep='lm_head'``."""
    return f"{option}={next(iter(patterns))!r}" if len(patterns) == 1 else f"{option}={tuple(patterns)!r}"
