"""What a replay leaves alone: which units, kept or skipped, and under which names.

functions     [c_attn] view [sdpa] [c_proj] │ [ln] [c_fc] gelu [down]      [ ] does not run again
units         attn, skipped ────────────────┘   kept  kept      skipped    a call of which nothing runs is one unit
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from .book import Book
from .drafts import Idle
from .glue import is_glue
from .products import NO_PRODUCTS

__all__ = ["is_free", "name_idle"]


class _Named(NamedTuple):
    """A unit; `call` is -1 where it is a single torch function."""

    key: str
    functions: tuple[int, ...]
    call: int


def name_idle(book: Book, members: tuple[int, ...], idle: Collection[int], remade: Collection[int] = ()) -> Idle:
    """Name what is left alone where some torch functions do not run again.

    Args:
        book: the profile.
        members: the calls of what is recomputed.
        idle: the functions inside it that are kept or skipped.
        remade: those of them whose products are made again, where the replay needs these at all.

    Returns:
        Them as units. A unit is kept where the replay reads what it made, and skipped elsewhere.
    """
    profile = book.profile
    functions, saves, calls = profile.functions, profile.saves, profile.calls
    own = book.functions_of_run(members)
    products = {f: book.products[f] for f in idle if f in remade and f in book.products}
    filled: dict[int, set[int]] = defaultdict(set)  # what idle functions saved and the replay makes
    end = 0  # of the replay, at the last slot
    savers: set[int] = set()
    for i in book.saves_of(members[0], calls[members[-1]].stop):
        f = saves.function[i]
        savers.add(f)
        remakes = products.get(f, NO_PRODUCTS).makes
        if f not in idle or saves.tensor[i] in functions.reads[f] or saves.tensor[i] in remakes:
            end = max(end, saves.pack[i])
            filled[f].add(saves.tensor[i])
    # What comes after it does not run in any case: a name is for what it saves.
    idle = {f for f in idle if functions.enter[f] <= end or f in savers}
    readers: dict[int, set[int]] = defaultdict(set)  # functions that need a tensor in the replay
    for tensor in filled[-1]:  # saved by what is no function, such as a custom autograd function
        readers[tensor].add(-1)
    again: set[int] = set()  # functions whose products are needed
    for f in reversed(own):
        if functions.enter[f] <= end and not is_free(book, f):  # a view of what is hollow is hollow
            for tensor in filled[f] if f in idle else functions.reads[f]:
                readers[tensor].add(f)
            if f in products and any(readers[tensor] for tensor in products[f].makes):
                again.add(f)
                for tensor in products[f].given:
                    readers[tensor].add(f)
    keep: list[str] = []
    skip: list[str] = []
    given: dict[int, frozenset[int]] = {}
    stashed: set[int] = set()
    remake: list[str] = []
    made_again = frozenset(tensor for f in again for tensor in products[f].makes)

    def read(own: Iterable[int]) -> set[int]:
        """Find what these functions made and the rest of the replay reads."""
        inside = set(own)
        return {tensor for f in inside for tensor in functions.makes[f] if readers[tensor].difference(inside)}

    units = _units(book, members, idle, again, read)
    for unit in units:
        made = {tensor for f in unit.functions for tensor in functions.makes[f]}
        if read(unit.functions):  # it holds all that it returned
            keep.append(unit.key)
            stashed |= (made if unit.call < 0 else made.intersection(calls[unit.call].outputs)) - made_again
        else:
            skip.append(unit.key)
        if not again.isdisjoint(unit.functions):
            remake.append(unit.key)
        came = functions.reads[unit.functions[0]] if unit.call < 0 else (a.tensor for a in calls[unit.call].arguments)
        given.update(dict.fromkeys(unit.functions, made_again.intersection(made).union(came)))
    watched = {
        call for unit in units if unit.call < 0 and not is_glue(calls[call := functions.call[unit.functions[0]]])
    }
    return Idle(
        given=given,
        calls=tuple((unit.call, calls[unit.call].stop) for unit in units if unit.call >= 0),
        stashed=frozenset(stashed).union(*(products[f].held for f in again)),
        keep=tuple(keep),
        skip=tuple(skip),
        remake=tuple(remake),
        remade=frozenset(again),
        seen=sum(book.seen(call) for call in watched),
    )


def is_free(book: Book, function: int) -> bool:
    """Whether a torch function is a view or a look at shapes: it costs nothing, and runs on hollow tensors too."""
    functions = book.profile.functions
    if functions.makes[function] or functions.mutates[function]:
        return False
    return functions.alias[function] or not functions.reads[function]  # else it reads values: `item`


def _units(
    book: Book,
    members: tuple[int, ...],
    idle: Collection[int],
    again: set[int],
    read: Callable[[Iterable[int]], set[int]],
) -> list[_Named]:
    """Cover idle functions with units, in forward order.

    A call inside a member of which everything is idle is one unit: that costs the host less than a function mode.
    Where products are made again, they must be the unit's alone; and it holds all that it returns, or nothing, so that
    all must be read: what is not would be held in vain, and may be changed later.
    """
    profile = book.profile
    units: list[_Named] = []
    left = set(idle)

    def cover(parents: Iterable[int]) -> None:
        for child in (child for parent in parents for child in book.children[parent]):
            own = book.functions_of(child)
            inside = tuple(f for f in own if f in left)
            if not inside:
                continue
            record = profile.calls[child]
            whole = all(f in left or is_free(book, f) for f in own) and not (record.refused or record.leaves_traces)
            whole = whole and (len(own) == 1 or again.isdisjoint(own) or _keeps_to_itself(book, child, again))
            taken = read(inside)
            made = {tensor for f in inside for tensor in profile.functions.makes[f]}
            whole = whole and (not taken or taken.issuperset(made.intersection(record.outputs)))
            if whole and {argument.tensor for argument in record.arguments}.isdisjoint(record.outputs):
                units.append(_Named(record.key, inside, child))
                left.difference_update(inside)
            else:
                cover([child])

    cover(members)
    units += [_Named(_key(book, f), (f,), -1) for f in left]
    return sorted(units, key=lambda unit: unit.functions[0])


def _keeps_to_itself(book: Book, call: int, again: Collection[int]) -> bool:
    """Whether a call as one unit makes just the products of `again` again, all by what it saves, and returns none.

    Of others the replay would have to find a factor among the call's arguments, of which it may be a view.
    """
    outputs = book.profile.calls[call].outputs
    own = (f for f in book.functions_of(call) if f in book.multiplying)
    return all(f in again and not book.products[f].given and book.products[f].makes.isdisjoint(outputs) for f in own)


def _key(book: Book, function: int) -> str:
    """Key of a function as a unit; glue is a call, and has one already."""
    functions = book.profile.functions
    call = book.profile.calls[functions.call[function]]
    return call.key if is_glue(call) else f"{call.key}/{functions.key(function)}"
