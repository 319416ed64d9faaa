"""The backward passes after a step's first: when they begin, and what they read again."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from ..watch.passes import LATER_PASSES
from .lifetimes import Lifetimes


def later_passes(found: Lifetimes) -> tuple[int, ...]:
    """Return the ticks at which passes after the first begin, or an outer pass goes on after one inside it."""
    return tuple(each.tick for each in found.of_kind(*LATER_PASSES))


def nested_passes(found: Lifetimes) -> tuple[int, ...]:
    """Return those ticks of `later_passes` at which a pass inside another begins, or the outer one goes on."""
    return tuple(each.tick for each in found.of_kind("backward_turn"))


def rereads(found: Lifetimes) -> tuple[tuple[int, int], ...]:
    """Return each save that a later backward pass read again, with the tick of that pass's first read; in order."""
    passes, seen, again = 0, dict[int, int](), list[tuple[int, int]]()
    for each in found.of_kind(*LATER_PASSES, "unpack"):
        if each.mark.kind != "unpack":
            passes += 1
        elif seen.setdefault(each.mark.index, passes) != passes:
            seen[each.mark.index] = passes
            again.append((each.mark.index, each.tick))
    return tuple(again)


def kept_reads(found: Lifetimes) -> tuple[tuple[int, int, int], ...]:
    """Return the reads of the backward passes that kept their graph.

    A pass kept its graph if it released none of its saves before its last read. Each read is the number of the save,
    and the ticks at which its copy was made and freed.
    """
    begins = later_passes(found)
    if not begins:
        return ()
    released = {each.mark.index: each.tick for each in found.of_kind("release")}
    passes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for save, tick, until in found.reads:
        passes[bisect_left(begins, tick)].append((save, tick, until))
    kept = [
        each
        for own in passes.values()
        if min(released.get(save, found.ticks) for save, *_ in own) > max(tick for _, tick, _ in own)
        for each in own
    ]
    return tuple(sorted(kept, key=lambda each: each[1]))
