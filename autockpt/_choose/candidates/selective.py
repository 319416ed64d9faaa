"""Selective variants of calls: the menu that a solver makes of their units, and a draft of each of its ways.

profile ──▶ Dataflow ──▶ menu ──▶ idle functions ──▶ whole calls where all of one is idle ──▶ draft
                one for all calls of a signature │ for each call
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ...solvers.dataflow import HostSeconds
from ...solvers.menu import make_menu
from .block import is_keepable, state_block
from .book import Book
from .drafts import Draft, make_draft
from .idle import is_free, name_idle

MOST_FUNCTIONS = 400
"""A call with more is no block; its menu would take too long."""

MANY_UNITS = 40
"""A call with more has menus for its parts too: its own corners lie far apart. One with no more has a menu also where
the chain of blocks runs through its parts: without it ResNet-152 recomputes 4 % longer where it is held to a third."""

FEW_ALIKE = 16
"""Calls that are alike, up to which menus look between the corners of the hull as well: the more blocks there are, the
less is lost by mixing two corners in place of what lies between them."""


def selective_drafts(book: Book, calls: Sequence[int], replayable: Collection[int]) -> list[Draft]:
    """Find the ways worth having to recompute a part of each call.

    Args:
        book: the profile.
        calls: the calls in forward order, such as the blocks of a model.
        replayable: those of all calls that can be recomputed.

    Returns:
        The drafts, without those that leave nothing out.
    """
    profile = book.profile
    alike: dict[tuple[object, ...], list[int]] = {}
    blocks = [*calls, *(_enclosing(book, call) for call in calls)]
    for call in dict.fromkeys(_with_parts(book, blocks, replayable)):
        names = tuple(profile.functions.name[f] for f in book.functions_of(call))
        if 1 < len(names) <= MOST_FUNCTIONS:
            alike.setdefault((profile.calls[call].signature, names, book.fates((call,))), []).append(call)
    host = HostSeconds(
        segment_seconds=book.host.replay_seconds,
        kept_unit_seconds=book.host.kept_seconds,
        seen_function_seconds=book.host.mode_seconds,
    )
    drafts = []
    for group in alike.values():
        block = state_block(book, (group[0],))
        if block is None:
            continue
        for way in make_menu(block.flow, host, between=len(group) <= FEW_ALIKE):
            if rows := block.idle(way.recompute):
                drafts += [draft for call in group if (draft := _draft(book, call, rows)) is not None]
    return drafts


def _draft(book: Book, call: int, idle_rows: Collection[int]) -> Draft | None:
    """Draft a call of which the functions in some rows of its block do not run again."""
    own = book.functions_of(call)
    return make_draft(book, (call,), name_idle(book, (call,), {own[row] for row in idle_rows}))


def _enclosing(book: Book, call: int) -> int:
    """The largest call around a call that has few units; the call itself where there is none."""
    parent = book.profile.calls[call].parent
    if parent <= 0 or len(_units(book, parent)) > MANY_UNITS:
        return call
    return _enclosing(book, parent)


def _units(book: Book, call: int) -> list[int]:
    """The torch functions of a call, views left out."""
    return [f for f in book.functions_of(call) if not is_free(book, f)]


def _with_parts(book: Book, calls: Iterable[int], replayable: Collection[int]) -> Iterator[int]:
    """The calls that can be recomputed, and the calls inside those whose own menu is not enough.

    That is one of many units, and one with a function that runs in every replay, in whichever part.
    """
    for call in calls:
        if call in replayable:
            yield call
        units = _units(book, call)
        if len(units) > MANY_UNITS or not all(is_keepable(book, f) for f in units):
            yield from _with_parts(book, book.children[call], replayable)
