"""Segments that keep or skip units: from menus, drawn by the menus' own rules, or by any names at all."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

from autockpt import Profile, Segment
from autockpt.solvers import Dataflow
from tests.doors import ProfileIndex, replay_of, state_flow
from tests.hosts import IDLE_HOST

__all__ = ["by_names", "by_rules", "without_host", "worth_drawing"]

LONGEST = 4
"""Calls in a run of which some units are left alone."""

SHARES = (0.2, 0.5, 0.8)
"""Of the units, how many are left alone."""


def without_host(profile: Profile, dice: int) -> Profile:
    """Let the host cost nothing and each function drawn seconds, so that menus have many entries."""
    drawn = random.Random(dice)
    seconds = [10.0 ** drawn.uniform(-6, -3) for _ in profile.functions.seconds]
    return msgspec.structs.replace(
        profile,
        device=IDLE_HOST,
        functions=msgspec.structs.replace(profile.functions, seconds=tuple(seconds)),
    )


def worth_drawing(index: ProfileIndex, rows: list[list[int]]) -> list[tuple[int, ...]]:
    """Return the runs in which there is something to choose: several functions, and nothing against them."""
    spans = [
        tuple(row[first : first + length])
        for row in rows
        for first in range(len(row))
        for length in range(1, min(LONGEST, len(row) - first) + 1)
    ]
    return [
        span
        for span in spans
        if len(index.within(span, index.functions)) > 1 and index.saves_of(span) and not index.reason(span)
    ]


def by_rules(index: ProfileIndex, members: tuple[int, ...], dice: int) -> Segment:
    """Leave any units of a run alone that the rules of menus allow; none where nothing comes of that.

    Args:
        index: the profile.
        members: a run that can be recomputed.
        dice: what is drawn with.
    """
    drawn = random.Random(f"{dice} {members[0]}")
    stated, idle = state_flow(index, members), frozenset[int]()
    if stated is not None:
        units, flow = stated
        share = drawn.choice(SHARES)
        again = _closed(flow, {group for group in sorted(set(flow.groups)) if drawn.random() > share})
        flow.decisions(again)  # raises if that is against the rules
        idle = frozenset(unit for i, unit in enumerate(units) if i not in again)
    replay = replay_of(index, members, idle) if idle else None
    if replay is None or not replay.segment.freed_bytes:
        replay = replay_of(index, members)
    return replay.segment if replay is not None else Segment(calls=index.keys(members))


def by_names(index: ProfileIndex, members: tuple[int, ...], dice: int) -> Segment:
    """Leave any calls and functions inside a run alone, whatever speaks against it."""
    drawn = random.Random(f"{dice} {members[0]}")
    inside = [node for member in members for node in range(member, index.nodes[member].stop)]
    names = [index.nodes[node].key for node in inside if node not in members]
    some = drawn.sample(names, min(len(names), drawn.randint(1, 3)))
    keep = {name for name in some if drawn.random() < 0.7}
    return Segment(
        calls=tuple(index.nodes[member].key for member in members),
        keep=tuple(sorted(keep)),
        skip=tuple(sorted(set(some).difference(keep))),
    )


def _closed(flow: Dataflow, groups: Collection[tuple[int, ...]]) -> frozenset[int]:
    """Add to the groups that run again those that must, since something else needs what they make and cannot hold."""
    chosen = set(groups)
    while True:
        again = frozenset(unit for unit, group in enumerate(flow.groups) if group in chosen)
        more = {flow.groups[u] for t in flow.held(again) if not flow.holdable[t] for u in flow.makers[t]}
        more -= chosen
        if not more:
            return again
        chosen |= more
