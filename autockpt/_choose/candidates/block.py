"""A run as a menu sees it: its torch functions as units, and their tensors as items.

run     ln ── c_attn ── view ── sdpa ── c_proj        what is free (view) is no unit
units   0     1                 2       3
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...solvers.dataflow import Dataflow, Item, Unit
from .book import Book
from .idle import is_free


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The torch functions of a run as units.

    Attributes:
        rows: the functions that are units, by their place among those of the run.
        flow: the units, in the order of `rows`.
    """

    rows: tuple[int, ...]
    flow: Dataflow

    def idle(self, again: Collection[int]) -> frozenset[int]:
        """Functions that do not run again if these units do."""
        return frozenset(row for unit, row in enumerate(self.rows) if unit not in frozenset(again))


def state_block(book: Book, members: tuple[int, ...]) -> Block | None:
    """State a run as units and items; None where something in it is no torch function, or changes an argument."""
    profile = book.profile
    functions, ops, saves = profile.functions, profile.ops, profile.saves
    start, stop = members[0], profile.calls[members[-1]].stop
    if any(f < 0 and start <= c < stop for f, c in zip(ops.function, ops.call, strict=True)):
        return None  # a custom autograd function: its operators run whatever the plan says
    own = book.functions_of_run(members)
    writes: dict[int, list[int]] = {f: [] for f in own}
    for f, written in zip(ops.function, ops.writes, strict=True):
        if f in writes:
            writes[f].extend(tensor for tensor in written if book.birth_function[tensor] != f)
    if any(not start <= book.birth_call[tensor] < stop for written in writes.values() for tensor in written):
        return None
    changed = book.changed_outside(members)
    # A unit hands out all of its results or none, so that where one is changed others cannot be had from it.
    read = {t for f in own for t in functions.reads[f]}
    gone = {t for f in own if not changed.isdisjoint(functions.makes[f]) for t in functions.makes[f]}
    gone &= changed | read
    inside = book.saves_of(start, stop)
    saved = {saves.tensor[i] for i in inside if saves.unpack[i] < profile.ticks} - {-1}
    free = _alive_anyway(book, members, saved)
    number: dict[int, int] = {}
    items: list[Item] = []

    def item(tensor: int) -> int:
        if tensor not in number:
            number[tensor] = len(items)
            items.append(
                Item(
                    bytes=int(book.bytes[tensor]),
                    saved=tensor in saved,
                    free=tensor in free,
                    holdable=tensor not in gone,
                )
            )
        return number[tensor]

    rows, units = [], []
    for row, f in enumerate(own):
        if is_free(book, f):
            continue
        makes = [item(tensor) for tensor in (*functions.makes[f], *writes[f])]
        keepable = is_keepable(book, f)
        if not keepable:  # nor can it be left out: it runs in every replay
            makes.append(len(items))
            items.append(Item(bytes=0, saved=True))
        rows.append(row)
        units.append(
            Unit(
                name=f"{profile.calls[functions.call[f]].key}/{functions.key(f)}",
                seconds=functions.seconds[f],
                reads=tuple(dict.fromkeys(item(tensor) for tensor in functions.reads[f])),
                makes=tuple(dict.fromkeys(makes)),
                keepable=keepable,
                caller=book.caller(f, members),
            )
        )
    unmade = {t for t in number if start <= book.birth_call[t] < stop} - {t for f in own for t in functions.makes[f]}
    if unmade:
        return None  # made by code that is no torch function
    return Block(rows=tuple(rows), flow=Dataflow(units=tuple(units), items=tuple(items)))


def is_keepable(book: Book, f: int) -> bool:
    """Whether a replay can do without running a function."""
    functions = book.profile.functions
    return not (functions.alias[f] or functions.mutates[f] or f in book.refused_results)


def _alive_anyway(book: Book, members: tuple[int, ...], saved: set[int]) -> set[int]:
    """Tensors that cost nothing to hold for a run's replay: its arguments, and what others hold until then."""
    profile = book.profile
    saves, start, stop = profile.saves, members[0], profile.calls[members[-1]].stop
    elsewhere = {t for t, c in zip(saves.tensor, saves.call, strict=True) if not start <= c < stop}
    replay = min((saves.unpack[i] for i in book.saves_of(start, stop)), default=profile.ticks)
    late = {t for t in saved if book.natural[t] > replay}
    return set(book.boundary(members)) | elsewhere | late
