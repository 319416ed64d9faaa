"""One plan for several kinds of steps that begin alike: only a later forward shows which one it is.

    maker · critic · critic ──▶ backward ...                       three steps of four
    maker · critic · critic · critic, on what lies between ──▶ ... the fourth, with its penalty

What the first forwards do is decided before anybody knows. So a plan for one kind is judged on the recorded steps of
the others, and is for all of them that it holds to the budget.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from ..._data.plan import Plan, Segment
from ..._data.profile import Profile
from ..._data.text.keys import split_key
from ...solvers.errors import Infeasible, TooCostly

Solve: TypeAlias = Callable[[Profile, float], Plan]
"""Plans for a profile, at a share of the budget."""

Restated: TypeAlias = Callable[[Plan, Profile], Plan | None]
"""Restates a plan for the step of a profile; None if it does not suit that step, or does not keep it to the budget."""

SHARES = (1.0, 0.95, 0.9, 0.8)
"""Of the budget, for which plans are made in turn until one holds all kinds of steps to it."""

MOST_OTHERS = 3
"""Kinds of steps, beside the one that begins, for which a plan is to do; the newest."""


def holds(plan: Plan, profile: Profile, restated: Restated) -> bool:
    """Whether a plan for another kind of step keeps the one that a profile recorded to the budget, if there is one.

    Of its segments those count that this step has; one that it has in part is in the way.
    """
    keys = {call.key for call in profile.calls}
    functions = profile.functions
    keys.update(f"{profile.calls[call].key}/{functions.key(f)}" for f, call in enumerate(functions.call))
    own = tuple(segment for segment in plan.segments if not keys.isdisjoint(segment.calls))
    whole = all(keys.issuperset(segment.calls) for segment in own)
    return whole and restated(msgspec.structs.replace(plan, segments=own), profile) is not None


def shared(
    plan: Plan, profiles: Sequence[Profile], solve: Solve, restated: Restated, *, any_will_do: bool
) -> tuple[Plan, int, tuple[int, ...]]:
    """Find a plan that holds all of several kinds of steps to a budget, or else the most.

    Tried are the plans for one of them each, then with segments of the others' plans besides, where those recompute
    other calls; and all that for smaller budgets.

    Args:
        plan: for the first of them.
        profiles: one of each kind; the first is of the step that begins.
        solve: see `Solve`.
        restated: see `Restated`.
        any_will_do: whether no budget in bytes is asked for, so that smaller ones need not be tried.

    Returns:
        The plan, the number of the profile that it was made from, and the numbers of those that it holds to the budget.
    """
    best: tuple[Plan, int, tuple[int, ...]] = plan, 0, (0,)
    for share in SHARES:
        plans: dict[int, Plan] = {} if share != 1 else {0: plan}
        for number, profile in enumerate(profiles):
            with contextlib.suppress(Infeasible, TooCostly):
                plans[number] = plans.get(number) or solve(profile, share)
        alone = list(plans.items())
        together = [(number, _with_segments(own, plans.values(), profiles)) for number, own in alone]
        for number, tried in (*alone, *together):
            held = tuple(i for i, profile in enumerate(profiles) if holds(tried, profile, restated))
            if len(held) > len(best[2]) and {0, number} <= {*held}:
                best = tried, number, held
            if len(best[2]) == len(profiles) or any_will_do:
                return best
    return best


def _with_segments(plan: Plan, others: Iterable[Plan], profiles: Sequence[Profile]) -> Plan:
    """Return a plan with those segments of others besides that lie nowhere in its own, nor these in them."""
    spans = [{call.key: range(i, call.stop) for i, call in enumerate(profile.calls)} for profile in profiles]
    segments = list(plan.segments)
    for segment in (each for other in others if other is not plan for each in other.segments):
        if not any(_meet(segment, own, each) for own in segments for each in spans):
            segments.append(segment)
    return msgspec.structs.replace(plan, segments=tuple(segments))


def _meet(one: Segment, other: Segment, spans: Mapping[str, range]) -> bool:
    """Whether a call of one segment is one of another, or lies inside it, in a step whose calls span so much."""
    own, theirs = (list(_spans_of(each, spans)) for each in (one, other))
    return any(mine.start in span or span.start in mine for mine in own for span in theirs)


def _spans_of(segment: Segment, spans: Mapping[str, range]) -> Iterator[range]:
    """Where the calls of a segment lie; of a torch function, where the call begins whose own code calls it."""
    for key in segment.calls:
        call, function = split_key(key)
        if call in spans:
            yield spans[call][:1] if function else spans[call]
