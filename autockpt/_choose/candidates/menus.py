"""Ways to recompute a part of a call: the menu that a solver makes of its torch functions.

call    ln ── c_attn ── view ── sdpa ── c_proj        what is free (view) is no unit
units   0     1                 2       3             one menu for all calls that are alike

A solver that spares products has a menu of its own, of the ways in which nothing that multiplies runs again. They need
not be worth having: on a GPU's roofline it is often cheaper, for each byte, to convolve again than to normalise again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...solvers.deadline import NEVER, Deadline
from ..dataflow.dataflow import Dataflow, Decisions, Item, Unit
from ..dataflow.menu import make_menu
from ..index.profile_index import Index, Members
from ..replay_cost.effects import PlannedReplay, replay_of

MOST_FUNCTIONS = 400
"""A call with more functions is no block, and its menu would take too long."""

DEAR = 1e3
"""A product is priced so many times all that the call takes, so that any way without it comes before it."""

MORE = 0.01
"""A dearer way that spares products frees this share of the call's bytes beyond the cheaper one, at least."""


def partial_replays(
    index: Index, calls: Sequence[int], deadline: Deadline = NEVER, *, sparing_products: bool = False
) -> tuple[list[PlannedReplay], bool]:
    """Find ways, worth having, to recompute a part of a module call and to keep or skip the rest of it.

    Returns what is found until the deadline, and whether that is everything. With `sparing_products` they are the best
    of those in which nothing that multiplies runs again.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    functions, found = index.profile.functions, list[PlannedReplay]()
    for call in calls:
        own = index.within((call,), index.functions)
        if 1 < len(own) <= MOST_FUNCTIONS:
            names = tuple(functions.name[index.nodes[f].function] for f in own)
            alike.setdefault(
                (index.nodes[call].record.signature, names, _changed_outside(index, call, own)), []
            ).append(call)
    for number, group in enumerate(alike.values()):
        if deadline.passed:
            return found, False
        deadline.tell("%d of %d kinds of calls looked into", number, len(alike))
        stated = state_flow(index, (group[0],))
        if stated is None:
            continue
        units, flow = stated
        menu = _sparing_menu if sparing_products else _menu
        for way in deadline.first_of(menu(index, units, flow, deadline)):
            again = frozenset(way.recompute)
            idle = [unit - group[0] for i, unit in enumerate(units) if i not in again]
            if idle:
                replays = (replay_of(index, (call,), [call + offset for offset in idle]) for call in group)
                found += (replay for replay in replays if replay is not None and replay.segment.freed_bytes)
    return found, not deadline.passed


def _menu(index: Index, _: Sequence[int], flow: Dataflow, deadline: Deadline) -> Iterable[Decisions]:
    """Return the ways that are worth having, most bytes first."""
    return make_menu(flow, kept_seconds=index.host.kept_seconds, deadline=deadline)


def _sparing_menu(index: Index, units: Sequence[int], flow: Dataflow, deadline: Deadline) -> Iterable[Decisions]:
    """Yield the best of the ways in which nothing that multiplies runs again, most bytes first."""
    products = frozenset(u for u, unit in enumerate(units) if index.within((unit,), index.multiplying))
    dear = DEAR * sum(unit.seconds for unit in flow.units)
    priced = (replace(unit, seconds=dear) if u in products else unit for u, unit in enumerate(flow.units))
    most_bytes, least_bytes = flow.plain_bytes, MORE * flow.plain_bytes
    for way in _menu(index, units, replace(flow, units=tuple(priced)), deadline):
        if products.isdisjoint(way.recompute) and most_bytes - way.held_bytes >= least_bytes:
            most_bytes = way.held_bytes
            yield way


def _changed_outside(index: Index, call: int, functions: Sequence[int]) -> frozenset[tuple[int, int]]:
    """Return which results of a call's functions are changed in place outside the call.

    Each is named by the function's offset in the call and the number of the result. Calls with the same signature
    share a menu only if these are the same.
    """
    return frozenset(
        (f - call, number)
        for f in functions
        for number, tensor in enumerate(index.makes(f))
        if index.is_changed_outside(tensor, (call,))
    )


def state_flow(index: Index, members: Members) -> tuple[list[int], Dataflow] | None:
    """Return the functions of a run that are units, by node, and the run as a dataflow.

    None where something in the run is no torch function, or changes an argument.
    """
    own = index.within(members, index.functions)
    if index.within(members, index.foreign) or _writes_outside(index, members, own):
        return None  # a custom autograd function: its operators run whatever the plan says
    made = {tensor for f in own for tensor in index.makes(f)}
    state_item = _items(index, members, own)
    number: dict[int, int] = {}
    items: list[Item] = []

    def item(tensor: int) -> int:
        if tensor not in number:
            number[tensor] = len(items)
            items.append(state_item(tensor))
        return number[tensor]

    def unit(function: int) -> Unit:
        makes = [item(tensor) for tensor in (*index.makes(function), *index.writes.get(function, ()))]
        keepable = index.is_keepable(function) and index.is_inside(function, members)
        if not keepable:  # a saved item that cannot be held forces it to run in every replay
            makes.append(len(items))
            items.append(Item(bytes=0, saved=True))
        return Unit(
            name=index.nodes[function].key,
            seconds=index.seconds[function],
            reads=tuple(dict.fromkeys(item(tensor) for tensor in index.reads(function))),
            makes=tuple(dict.fromkeys(makes)),
            keepable=keepable,
        )

    nodes = [f for f in own if not index.is_free(f)]
    units = [unit(f) for f in nodes]
    if any(tensor not in made and index.covers(members, index.birth_node[tensor]) for tensor in number):
        return None  # made by code that is no torch function
    return nodes, Dataflow(units=tuple(units), items=tuple(items))


def _writes_outside(index: Index, members: Members, functions: Sequence[int]) -> bool:
    """Whether functions of a run change a tensor that was made before it."""
    return not all(index.covers(members, index.birth_node[t]) for f in functions for t in index.writes.get(f, ()))


def _items(index: Index, members: Members, functions: Sequence[int]) -> Callable[[int], Item]:
    """Return a function that describes a tensor of a run as an item."""
    profile, saves = index.profile, index.profile.saves
    inside = index.saves_of(members)
    saved = {saves.tensor[i] for i in inside if saves.unpack[i] < profile.ticks}
    # Holding costs nothing for arguments, and for tensors that something else holds until the replay.
    replay = min((saves.unpack[i] for i in inside), default=profile.ticks)
    held = {*index.boundary(members), *(t for t in saved if t >= 0 and index.natural[t] > replay)}
    # A kept unit hands out all of its results or none. So if one of them is changed, the others cannot be had either.
    changed = {t for f in functions for t in index.makes(f) if index.is_changed_outside(t, members)}
    gone = {t for f in functions if not changed.isdisjoint(index.makes(f)) for t in index.makes(f)}
    gone &= changed.union(*(index.reads(f) for f in functions))

    def state(tensor: int) -> Item:
        free = tensor in held or index.is_saved_outside(tensor, members)
        return Item(bytes=index.bytes_of[tensor], saved=tensor in saved, free=free, holdable=tensor not in gone)

    return state
