"""Segments that keep or skip units: from menus, drawn by the menus' own rules, or by any names at all."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

from autockpt import Profile, Segment
from autockpt._choose.candidates.block import state_block
from autockpt._choose.candidates.book import Book
from autockpt._choose.candidates.drafts import make_draft
from autockpt._choose.candidates.glue import is_glue
from autockpt._choose.candidates.idle import name_idle
from autockpt.solvers.dataflow import Dataflow
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


def worth_drawing(profile: Profile) -> list[tuple[int, ...]]:
    """Return the runs in which there is something to choose: with several functions, and nothing against them."""
    book = Book(profile)
    spans = [
        tuple(children[first : first + length])
        for children in book.children
        for first in range(len(children))
        for length in range(1, min(LONGEST, len(children) - first) + 1)
    ]
    return [
        span
        for span in spans
        if len(book.functions_of_run(span)) > 1 and any(book.saves_in(call) for call in span) and not book.reason(span)
    ]


def by_rules(profile: Profile, members: tuple[int, ...], dice: int) -> Segment:
    """Leave any units of a run alone that the rules of menus allow; none where nothing comes of that.

    Args:
        profile: the profile.
        members: a run that can be recomputed.
        dice: what is drawn with.
    """
    book, drawn = Book(profile), random.Random(f"{dice} {members[0]}")
    block, idle = state_block(book, members), None
    if block is not None:
        share, flow = drawn.choice(SHARES), block.flow
        again = _closed(flow, {group for group in sorted(set(flow.groups)) if drawn.random() > share})
        flow.decisions(again)  # raises if that is against the rules
        own = book.functions_of_run(members)
        rows = {own[row] for row in block.idle(again)}
        idle = name_idle(book, members, rows) if rows else None
    draft = make_draft(book, members, idle) if idle else None
    calls = profile.calls
    inside = calls[members[0] : calls[members[-1]].stop]
    return Segment(
        calls=tuple(calls[member].key for member in members),
        parent=calls[calls[members[0]].parent].key,
        buffers=tuple(dict.fromkeys(name for each in inside for name in each.buffers)),
        keep=draft.run.idle.keep if draft else (),
        skip=draft.run.idle.skip if draft else (),
    )


def by_names(profile: Profile, members: tuple[int, ...], dice: int) -> Segment:
    """Leave any calls and functions inside a run alone, whatever speaks against it."""
    book, drawn = Book(profile), random.Random(f"{dice} {members[0]}")
    calls, functions = profile.calls, profile.functions
    span = calls[members[0] : calls[members[-1]].stop]
    whole = {calls[member].key for member in members if not is_glue(calls[member])}
    names = [call.key for call in span if call.key not in whole]
    own = [f for f in book.functions_of_run(members) if not is_glue(calls[functions.call[f]])]
    names += [f"{calls[functions.call[f]].key}/{functions.key(f)}" for f in own]
    some = drawn.sample(names, min(len(names), drawn.randint(1, 3)))
    keep = {name for name in some if drawn.random() < 0.7}
    return Segment(
        calls=tuple(calls[member].key for member in members),
        keep=tuple(sorted(keep)),
        skip=tuple(sorted(set(some).difference(keep))),
    )


def _closed(flow: Dataflow, groups: Collection[int]) -> frozenset[int]:
    """Add to the groups that run again those that must, since something else needs what they make and cannot hold."""
    chosen = {*groups, *(flow.groups[unit] for unit in flow.must_recompute)}
    while True:
        again = frozenset(unit for unit, group in enumerate(flow.groups) if group in chosen)
        more = {flow.groups[u] for t in flow.held(again) if not flow.holdable[t] for u in flow.makers[t]}
        more -= chosen
        if not more:
            return again
        chosen |= more
