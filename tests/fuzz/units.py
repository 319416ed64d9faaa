"""Segments that keep or skip units: from menus, drawn by the menus' own rules, or by any names at all."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

from autockpt import Profile, Segment
from autockpt._candidates.book import Book
from autockpt._candidates.drafts import make_draft
from autockpt._candidates.idle import name_idle
from autockpt._candidates.selective import state_block
from autockpt.solvers.dataflow import Dataflow

__all__ = ["by_names", "by_rules", "without_host", "worth_drawing"]

SHARES = (0.2, 0.5, 0.8)
"""Of the units, how many are left alone."""


def without_host(profile: Profile, dice: int) -> Profile:
    """Let the host cost nothing and each function drawn seconds, so that menus have many entries."""
    drawn = random.Random(dice)
    seconds = [10.0 ** drawn.uniform(-6, -3) for _ in profile.functions.seconds]
    return msgspec.structs.replace(
        profile,
        replay_host_seconds=0.0,
        kept_host_seconds=0.0,
        mode_host_seconds=0.0,
        functions=msgspec.structs.replace(profile.functions, seconds=tuple(seconds)),
    )


def worth_drawing(profile: Profile) -> list[int]:
    """Return the calls in which there is something to choose: with several functions, and nothing against them."""
    book = Book(profile)
    return [
        call
        for call in range(1, len(profile.calls))
        if len(book.functions_of(call)) > 1 and book.saves_in(call) and not book.reason((call,))
    ]


def by_rules(profile: Profile, call: int, dice: int) -> Segment:
    """Leave any units of a call alone that the rules of menus allow; none where nothing comes of that.

    Args:
        profile: the profile.
        call: a call that can be recomputed.
        dice: what is drawn with.
    """
    book, drawn = Book(profile), random.Random(f"{dice} {call}")
    block, idle = state_block(book, call), None
    if block is not None:
        share, flow = drawn.choice(SHARES), block.flow
        again = _closed(flow, {group for group in sorted(set(flow.groups)) if drawn.random() > share})
        flow.decisions(again)  # raises if that is against the rules
        first = book.functions_of(call).start
        rows = {first + row for unit, row in enumerate(block.rows) if unit not in again}
        idle = name_idle(book, call, rows) if rows else None
    draft = make_draft(book, (call,), idle) if idle else None
    record = profile.calls[call]
    return Segment(
        calls=(record.key,),
        parent=profile.calls[record.parent].key,
        buffers=tuple(dict.fromkeys(name for each in profile.calls[call : record.stop] for name in each.buffers)),
        keep=draft.run.keep if draft else (),
        skip=draft.run.skip if draft else (),
    )


def by_names(profile: Profile, call: int, dice: int) -> Segment:
    """Leave any calls and functions inside a call alone, whatever speaks against it."""
    book, drawn = Book(profile), random.Random(f"{dice} {call}")
    calls, functions = profile.calls, profile.functions
    names = [calls[inside].key for inside in range(call + 1, calls[call].stop)]
    names += [f"{calls[functions.call[f]].key}/{functions.key(f)}" for f in book.functions_of(call)]
    some = drawn.sample(names, min(len(names), drawn.randint(1, 3)))
    keep = {name for name in some if drawn.random() < 0.7}
    return Segment(calls=(calls[call].key,), keep=tuple(sorted(keep)), skip=tuple(sorted(set(some).difference(keep))))


def _closed(flow: Dataflow, groups: Collection[int]) -> frozenset[int]:
    """Add to the groups that run again those that must, since something else needs what they make and cannot hold."""
    chosen = {*groups, *(flow.groups[unit] for unit in flow.must_recompute)}
    while True:
        again = frozenset(unit for unit, group in enumerate(flow.groups) if group in chosen)
        more = {flow.groups[u] for t in flow.held(again) if not flow.holdable[t] for u in flow.makers[t]} - chosen
        if not more:
            return again
        chosen |= more
