"""Selective variants of runs: the menu that a solver makes of their units, and a draft of each of its entries.

profile ──▶ Dataflow ──▶ menu ──▶ idle functions ──▶ whole calls where all of one is idle ──▶ draft
                one for all calls of a signature │ for each call
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ...solvers.dataflow import HostSeconds
from ...solvers.menu import MOST_ENTRIES, Menu, make_menu
from ...solvers.units import format_seconds
from .block import Block, is_keepable, state_block
from .book import Book
from .drafts import Draft, make_draft
from .idle import is_free, name_idle
from .runs import closed, stretches, windows

__all__ = ["MENU_SECONDS", "selective_drafts"]

MENU_SECONDS = 3.0
"""For the menus of a model together: more than most models take, so that it is seldom the clock that decides which
plans there are, and what the lowest peak is."""

FIRST_SHARE = 0.5
"""Share of the time in which each kind of call has an equal part, which is enough for nearly all of them. The rest goes
to those for which it was not, first to what saves most: half of what is left to each but the last."""

MOST_FUNCTIONS = 400
"""A call with more is no block; its menu would take too long."""

MANY_UNITS = 40
"""A call with more has menus for its parts too: its own takes too long to be searched to the end."""

MOST_UNITS = 64
"""A block and the glue around it have no more, or no menu together."""

DRAFTS_PER_KIND = 12 * MOST_ENTRIES
"""Where a kind has more blocks their menus are shorter, down to the hull: the more blocks there are, the less is lost
by mixing two entries of the hull in place of one between them."""

DRAFTS_PER_PART = 4 * MOST_ENTRIES
"""The same for stretches, of which a block has several kinds."""


Kind: TypeAlias = tuple[Block, list[tuple[int, ...]]]
"""Runs that are alike, as units."""


class Searched(NamedTuple):
    """A menu of runs that are alike, the seconds that there were for it, and whether it joins units."""

    group: list[tuple[int, ...]]
    menu: Menu
    limit_seconds: float
    joins: bool


def selective_drafts(
    book: Book, calls: Sequence[int], replayable: Collection[int], *, time_limit_seconds: float = MENU_SECONDS
) -> tuple[list[Draft], tuple[str, ...]]:
    """Find the ways worth having to recompute a part of each call, of the windows of calls with glue, and of stretches.

    Args:
        book: the profile.
        calls: the calls in forward order, such as the blocks of a model.
        replayable: those of all calls that can be recomputed.
        time_limit_seconds: for all menus together.

    Returns:
        The drafts, without those that leave nothing out, and a sentence for each call's menu that may lack some, and
        one for all other menus.
    """
    begun = time.perf_counter()
    larger = closed(book, calls, MANY_UNITS)
    single = [(call,) for call in dict.fromkeys(_with_parts(book, [*calls, *larger], replayable))]
    drafts, searched = _drafts(book, single, time_limit_seconds)
    around = [*windows(book, calls, MOST_UNITS), *windows(book, larger, MOST_UNITS)]
    later = [(list(dict.fromkeys(around)), DRAFTS_PER_KIND)]
    # Without host costs the menu of a whole call is nearly as good, and more candidates take longer to search.
    if book.profile.mode_host_seconds or book.profile.kept_host_seconds:
        alone = set(single)
        parts = stretches(book, [call for (call,) in single])
        later.append(([members for members in parts if members not in alone], DRAFTS_PER_PART))
    for runs, drafts_per_kind in later:
        left_seconds = max(time_limit_seconds - (time.perf_counter() - begun), 0.0)
        found, others = _drafts(book, runs, left_seconds, drafts_per_kind)
        drafts += found
        searched += others
    return drafts, _notes(book, searched, time_limit_seconds)


def _drafts(
    book: Book, runs: Iterable[tuple[int, ...]], time_limit_seconds: float, drafts_per_kind: int = DRAFTS_PER_KIND
) -> tuple[list[Draft], list[Searched]]:
    """Find the ways worth having to recompute a part of each run; return the menus with them."""
    profile = book.profile
    alike: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for members in runs:
        names = tuple(profile.functions.name[f] for f in book.functions_of_run(members))
        if 1 < len(names) <= MOST_FUNCTIONS:
            signatures = tuple(profile.calls[member].signature for member in members)
            alike.setdefault((signatures, names, book.fates(members)), []).append(members)
    kinds = [(block, group) for group in alike.values() if (block := state_block(book, group[0])) is not None]
    kinds.sort(key=lambda kind: -kind[0].flow.plain_bytes * len(kind[1]))
    begun, host = time.perf_counter(), _host(book)
    searched = _menus(kinds, drafts_per_kind, host, time_limit_seconds)
    drafts = [draft for kind, made in zip(kinds, searched, strict=True) for draft in _of_menu(book, *kind, made.menu)]
    if host.kept_unit_seconds:
        left_seconds = max(time_limit_seconds - (time.perf_counter() - begun), 0.0)
        joined, joining = _with_joined_units(book, kinds, drafts, drafts_per_kind, left_seconds / 2)
        drafts += joined
        searched += joining
    return drafts, searched


def _with_joined_units(
    book: Book, kinds: Sequence[Kind], drafts: Iterable[Draft], drafts_per_kind: int, time_limit_seconds: float
) -> tuple[list[Draft], list[Searched]]:
    """Find drafts that are cheaper than they look to a menu, and than those that there are; return the menus with them.

    A menu charges every function that is kept. Those that make up a call are one unit, and cost as one: so here keeping
    is free while menus are made, and charged when the units have their names.
    """
    known: dict[tuple[int, ...], list[Draft]] = {}
    for draft in drafts:
        known.setdefault(draft.run.members, []).append(draft)
    joining = [(block, group) for block, group in kinds if _may_join(book, group[0])]
    free = HostSeconds(segment_seconds=book.profile.replay_host_seconds)
    searched = _menus(joining, drafts_per_kind, free, time_limit_seconds)
    found = []
    for kind, made in zip(joining, searched, strict=True):
        found += _of_menu(book, *kind, made.menu, known)
    return found, [made._replace(joins=True) for made in searched]


def _of_menu(
    book: Book,
    block: Block,
    group: list[tuple[int, ...]],
    menu: Menu,
    known: Mapping[tuple[int, ...], Sequence[Draft]] = MappingProxyType({}),
) -> list[Draft]:
    """Draft the entries of a menu for each of the runs that are alike, unless drafts known for a run beat them."""
    drafts = []
    for entry in menu.entries:
        idle_rows = block.idle(entry.recompute)
        if not idle_rows:
            continue
        drafted = (_draft_of_rows(book, members, idle_rows) for members in group)
        found = (draft for draft in drafted if draft is not None)
        first = next(found, None)
        if first is None or any(_beats(other, first) for other in known.get(first.run.members, ())):
            continue  # nor is it better for the others, which are alike
        drafts += [first, *found]
    return drafts


def _may_join(book: Book, members: tuple[int, ...]) -> bool:
    """Whether inside a run there is a call of several functions, which can be one unit."""
    calls = book.profile.calls
    inside = set(range(members[0], calls[members[-1]].stop)).difference(members)
    return any(sum(not is_free(book, f) for f in book.functions_of(call)) > 1 for call in inside)


def _beats(other: Draft, draft: Draft) -> bool:
    """Whether another draft of the same run frees as many bytes for no more seconds, whenever those come back."""
    freed_bytes, others_bytes = (each.run.freed_bytes - each.run.kept_bytes for each in (draft, other))
    return others_bytes >= freed_bytes and other.seconds <= draft.seconds


def _draft_of_rows(book: Book, members: tuple[int, ...], idle_rows: Collection[int]) -> Draft | None:
    """Draft a run of which the functions in some rows of its block do not run again."""
    own = book.functions_of_run(members)
    return _draft(book, members, {own[row] for row in idle_rows})


def _draft(book: Book, members: tuple[int, ...], idle: set[int]) -> Draft | None:
    """Draft a run of which some functions do not run again, without the calls at its ends that need no replay."""
    while len(members) > 1 and _all_idle(book, members[0], idle):
        members = members[1:]
    made = {t for f in book.functions_of_run(members) if f not in idle for t in book.profile.functions.makes[f]}
    while len(members) > 1 and _all_idle(book, members[-1], idle):
        saved = {book.profile.saves.tensor[i] for i in book.saves_in(members[-1])}
        if not made.isdisjoint(saved):
            break  # what it saves of its arguments the replay brings back
        members = members[:-1]
    if book.reason(members):
        return None  # what was cut off made an argument that the rest changes
    own = book.functions_of_run(members)
    return make_draft(book, members, name_idle(book, members, idle.intersection(own)))


def _all_idle(book: Book, call: int, idle: Collection[int]) -> bool:
    return all(f in idle or is_free(book, f) for f in book.functions_of(call))


def _menus(kinds: Sequence[Kind], drafts_per_kind: int, host: HostSeconds, time_limit_seconds: float) -> list[Searched]:
    """Make a menu for each kind of run, those that save most first.

    Args:
        kinds: of runs.
        drafts_per_kind: how many drafts the entries of a menu may make for all runs of a kind together.
        host: what a selective segment costs the host.
        time_limit_seconds: for all of them together.
    """
    flows = [block.flow for block, _ in kinds]
    sizes = [min(MOST_ENTRIES, drafts_per_kind // len(group)) for _, group in kinds]
    begun = time.perf_counter()

    def left(share: float) -> float:
        return max(begun + share * time_limit_seconds - time.perf_counter(), 0.0)

    def search(kind: int, limit_seconds: float) -> Searched:
        menu = make_menu(flows[kind], host, time_limit_seconds=limit_seconds, most_entries=sizes[kind])
        return Searched(kinds[kind][1], menu, limit_seconds, joins=False)

    searched = [search(kind, left(FIRST_SHARE) / (len(flows) - kind)) for kind in range(len(flows))]
    late = [kind for kind, made in enumerate(searched) if made.menu.late]
    for kind in late:
        limit_seconds = left(1.0) if kind == late[-1] else left(1.0) / 2
        if limit_seconds > searched[kind].limit_seconds:
            searched[kind] = search(kind, limit_seconds)
    return searched


def _notes(book: Book, searched: Iterable[Searched], time_limit_seconds: float) -> tuple[str, ...]:
    """Say which calls' menus may lack entries, and how many other menus the clock cut short."""
    unfinished = [made for made in searched if not made.menu.whole]
    of_calls = [made for made in unfinished if len(made.group[0]) == 1 and not made.joins]
    others = {made.group[0] for made in unfinished if made.menu.late} - {made.group[0] for made in of_calls}
    notes = [_said(book, made) for made in of_calls]
    if others:
        notes.append(
            f"other menus, of runs of calls and functions and of calls with their parts joined, that were not searched "
            f"to their end in {format_seconds(time_limit_seconds)} for all: {len(others)}. "
            "More menu_seconds, of autockpt.solve, may find a cheaper plan"
        )
    return tuple(notes)


def _said(book: Book, made: Searched) -> str:
    """Say that a call's menu may lack entries, and why."""
    group, menu = made.group, made.menu
    like_it = f" and {len(group) - 1} calls like it" if len(group) > 1 else ""
    why, more = "since too many results of its functions stand at one time", "There may be a cheaper plan"
    if menu.late:
        why, more = (
            f"in {format_seconds(made.limit_seconds)}",
            "More menu_seconds, of autockpt.solve, may find a cheaper plan",
        )
    parts = sum(bool(entry.keep or entry.skip) for entry in menu.entries)
    return (
        f"the menu of {book.profile.calls[group[0][0]].key}{like_it} was not searched to its end {why}: it offers the "
        f"whole call, and {parts} ways to recompute a part of it. {more}"
    )


def _with_parts(book: Book, calls: Iterable[int], replayable: Collection[int]) -> Iterator[int]:
    """The calls that can be recomputed, and the calls inside those whose own menu is not enough.

    That is one of many units, and one with a function that runs in every replay, in whichever part.
    """
    for call in calls:
        if call in replayable:
            yield call
        units = [f for f in book.functions_of(call) if not is_free(book, f)]
        if len(units) > MANY_UNITS or not all(is_keepable(book, f) for f in units):
            yield from _with_parts(book, book.children[call], replayable)


def _host(book: Book) -> HostSeconds:
    profile = book.profile
    return HostSeconds(
        segment_seconds=profile.replay_host_seconds,
        kept_unit_seconds=profile.kept_host_seconds,
        seen_function_seconds=profile.mode_host_seconds,
    )
