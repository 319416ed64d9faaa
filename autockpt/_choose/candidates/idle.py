"""What a replay leaves alone: which units, kept or skipped, and under which names.

functions     [c_attn] view [sdpa] [c_proj] │ [ln] [c_fc] gelu [down]      [ ] does not run again
units         attn, skipped ────────────────┘   kept  kept      skipped    a call of which nothing runs is one unit
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from .book import Book
from .drafts import Idle
from .glue import is_glue


class _Named(NamedTuple):
    """A unit; `call` is -1 where it is a single torch function. It holds its `results` where the replay reads any."""

    key: str
    functions: tuple[int, ...]
    call: int
    results: frozenset[int]
    kept: bool


class _Needs(NamedTuple):
    """What a replay needs of the functions that do not run in it.

    Attributes:
        idle: them, but for those that come after its end in any case.
        readers: by tensor, the functions that need it in the replay; -1 for what is no function.
        ends_in: the function in which the replay ends before that has done anything; -1 where it has.
    """

    idle: frozenset[int]
    readers: dict[int, set[int]]
    ends_in: int

    def read(self, made: Iterable[int], inside: Collection[int]) -> set[int]:
        """Return which of these tensors, made by functions in `inside`, the rest of the replay reads."""
        return {tensor for tensor in made if self.readers[tensor].difference(inside)}


def name_idle(book: Book, members: tuple[int, ...], idle: Collection[int]) -> Idle:
    """Name what is left alone where some torch functions do not run again.

    Args:
        book: the profile.
        members: the calls of what is recomputed.
        idle: the functions inside it that are kept or skipped.

    Returns:
        Them as units. A unit is kept where the replay reads what it made, and skipped elsewhere.
    """
    functions, calls = book.profile.functions, book.profile.calls
    needs = _needs(book, members, idle)
    # By name it would cost the host something, and without it costs nothing.
    units = [unit for unit in _units(book, members, needs) if unit.functions != (needs.ends_in,)]
    given: dict[int, frozenset[int]] = {}
    stashed: set[int] = set()
    for unit in units:
        if unit.kept:
            stashed |= unit.results
        came = functions.reads[unit.functions[0]] if unit.call < 0 else (a.tensor for a in calls[unit.call].arguments)
        given.update(dict.fromkeys(unit.functions, frozenset(came)))
    watched = {book.caller(unit.functions[0], members) for unit in units if unit.call < 0 or is_glue(calls[unit.call])}
    return Idle(
        given=given,
        calls=tuple((unit.call, calls[unit.call].stop) for unit in units if unit.call >= 0),
        stashed=frozenset(stashed),
        keep=tuple(unit.key for unit in units if unit.kept),
        skip=tuple(unit.key for unit in units if not unit.kept),
        # What watches members that are glue is no part of the run: drafts charge it.
        seen=sum(book.seen(call) for call in watched if not is_glue(calls[call])),
    )


def is_free(book: Book, function: int) -> bool:
    """Whether a torch function is a view or a look at shapes: it costs nothing, and runs on hollow tensors too."""
    functions = book.profile.functions
    if functions.makes[function] or functions.mutates[function]:
        return False
    return functions.alias[function] or not functions.reads[function]  # else it reads values: `item`


def _needs(book: Book, members: tuple[int, ...], idle: Collection[int]) -> _Needs:
    """Find out what a replay needs, from its last slot to its first."""
    functions, saves = book.profile.functions, book.profile.saves
    filled: dict[int, set[int]] = defaultdict(set)  # what idle functions saved and the replay makes
    end = 0  # of the replay, at the last slot
    savers: set[int] = set()
    for i in book.saves_of(members[0], book.profile.calls[members[-1]].stop):
        f = saves.function[i]
        savers.add(f)
        if f not in idle or saves.tensor[i] in functions.reads[f]:
            end = max(end, saves.pack[i])
            filled[f].add(saves.tensor[i])
    # What comes after it does not run in any case: a name is for what it saves.
    left = frozenset(f for f in idle if functions.enter[f] <= end or f in savers)
    readers: dict[int, set[int]] = defaultdict(set)
    for tensor in filled[-1]:  # saved by what is no function, such as a custom autograd function
        readers[tensor].add(-1)
    for f in reversed(book.functions_of_run(members)):
        if functions.enter[f] <= end and not is_free(book, f):  # a view of what is hollow is hollow
            for tensor in filled[f] if f in left else functions.reads[f]:
                readers[tensor].add(f)
    return _Needs(left, readers, _ends_in(book, members, idle, end, filled))


def _ends_in(
    book: Book, members: tuple[int, ...], idle: Collection[int], end: int, filled: Mapping[int, set[int]]
) -> int:
    """Find the idle function in which a replay ends before that has done anything; -1 if it ends in no such one.

    Frames may fill slots of tensors that are older than the step too, and cast weights anew for each function: what
    saves such a tensor later, or a cast, does not end there.
    """
    functions, saves = book.profile.functions, book.profile.saves
    inside = book.saves_of(members[0], book.profile.calls[members[-1]].stop)
    function = next((saves.function[i] for i in inside if saves.pack[i] == end), -1)
    if function not in idle or not filled[function].issuperset(functions.reads[function]):
        return -1
    own = [i for i in inside if saves.function[i] == function]
    last = max(saves.pack[i] for i in own)
    later = any(saves.tensor[i] < 0 and saves.pack[i] > last for i in inside)
    cast = any(saves.tensor[i] in book.casts for i in own)
    return -1 if later or cast or book.begins(function, last) else function


def _units(book: Book, members: tuple[int, ...], needs: _Needs) -> list[_Named]:
    """Cover idle functions with units, in forward order.

    A call inside a member of which everything is idle is one unit: that costs the host less than a function mode.
    It holds all that it returns, or nothing, so that all must be read: what is not would be held in vain, and may be
    changed later.
    """
    calls, functions = book.profile.calls, book.profile.functions
    units: list[_Named] = []
    left = set(needs.idle)

    def cover(parents: Iterable[int]) -> None:
        for child in (child for parent in parents for child in book.children[parent]):
            own = book.functions_of(child)
            inside = tuple(f for f in own if f in left)
            if not inside:
                continue
            record = calls[child]
            whole = all(f in left or is_free(book, f) for f in own) and not (
                child in book.refused or record.leaves_traces
            )
            made = {tensor for f in inside for tensor in functions.makes[f]}
            results = made.intersection(record.outputs)
            read = needs.read(made, inside)
            whole = whole and (not read or read >= results)
            if whole and {argument.tensor for argument in record.arguments}.isdisjoint(record.outputs):
                units.append(_Named(record.key, inside, child, frozenset(results), bool(read)))
                left.difference_update(inside)
            else:
                cover([child])

    cover(members)
    for f in left:
        read = needs.read(functions.makes[f], (f,))
        units.append(_Named(_key(book, f), (f,), -1, frozenset(functions.makes[f]), bool(read)))
    return sorted(units, key=lambda unit: unit.functions[0])


def _key(book: Book, function: int) -> str:
    """Key of a function as a unit; glue is a call, and has one already."""
    functions = book.profile.functions
    call = book.profile.calls[functions.call[function]]
    return call.key if is_glue(call) else f"{call.key}/{functions.key(function)}"
