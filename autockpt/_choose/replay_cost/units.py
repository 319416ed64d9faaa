"""What a replay does not run: units, which are kept or skipped. A unit is a torch function, or a whole module call.

functions     [c_attn] view [sdpa] [c_proj]   [ln] [c_fc] gelu [down]      [ ] does not run again
units          attn, skipped ───────────────┘  keep  keep        skip      keep: the rest of the replay reads its result

A call of which nothing runs again is one unit. That costs the host less: the call's own patch handles it, and no
function mode has to look for its functions. It also does not hold what only these functions read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..index.profile_index import Index, Members

Units = tuple[int, ...]
Given = Mapping[int, Collection[int]]
"""For each idle function, the tensors that came into its unit; `_OLDER` stands for all older than the step."""

_OLDER = -1
"""As in the table of saves. Each function counts as given `_OLDER`: if it saves an older tensor, it was an argument."""

Readers = defaultdict[int, set[int]]
"""By tensor, the nodes that need it in a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsLeft:
    """What a replay does not run.

    Attributes:
        keep: units of which a result is kept, by node.
        skip: units of which no result is read, by node.
        functions: the torch functions in all of them, by node.
        given: by function, the tensors that come into its unit. If the function saves one, the replay makes it again.
        results: the tensors that are kept.
    """

    keep: tuple[int, ...] = ()
    skip: tuple[int, ...] = ()
    functions: frozenset[int] = frozenset()
    given: Given = field(default_factory=dict)
    results: tuple[int, ...] = ()

    @property
    def whole(self) -> frozenset[int]:
        """The units that are module calls."""
        return frozenset((*self.keep, *self.skip)) - self.functions


NOTHING = UnitsLeft()


def left_alone(
    index: Index, members: Members, idle: Collection[int], whole: Collection[int] | None = None
) -> UnitsLeft:
    """Return the units that a replay must be told not to run, if some torch functions of a run are `idle`.

    Functions that the replay never reaches and that save nothing are left out: to name them would cost host time for
    no benefit.

    Args:
        index: of the profile.
        members: the run.
        idle: the functions.
        whole: the calls that may be a unit each; None for all that can be.
    """
    given: dict[int, Collection[int]] = {f: (*index.reads(f), _OLDER) for f in idle}
    readers, left = _needs(index, members, given)
    calls = dict(_calls_as_units(index, members, left, set(idle), readers, whole))
    if calls:  # each is given its arguments, and not what its functions read: the replay may need other tensors
        for call, own in calls.items():
            given |= dict.fromkeys(own, tuple(each.tensor for each in index.nodes[call].arguments))
        readers, left = _needs(index, members, given)
    unit_of = {f: call for call, own in calls.items() for f in own}
    units = {unit: calls.get(unit, (unit,)) for unit in (unit_of.get(f, f) for f in sorted(left))}
    return _named(index, units, given, readers)


def _named(index: Index, units: Mapping[int, Units], given: Given, readers: Readers) -> UnitsLeft:
    """Split units, each with its functions, into those that are kept and those that are skipped."""
    results: dict[int, list[int]] = {}
    for unit, own in units.items():
        made = [tensor for f in own for tensor in index.makes(f)]
        if unit not in own:
            made = [tensor for tensor in made if tensor in index.nodes[unit].outputs]
        if _read(readers, made, own):
            results[unit] = made
    named = frozenset(f for own in units.values() for f in own)
    return UnitsLeft(
        keep=tuple(sorted(results)),
        skip=tuple(sorted(units.keys() - results.keys())),
        functions=named,
        given={f: given[f] for f in named},
        results=tuple(tensor for made in results.values() for tensor in made),
    )


def _needs(index: Index, members: Members, given: Given) -> tuple[Readers, set[int]]:
    """Find out what a replay needs. Of the tensors that idle functions save, it makes those that they were `given`.

    Returns:
        By tensor, the nodes that need it; and the idle functions that have to be named.
    """
    saves, inside = index.profile.saves, index.saves_of(members)
    filled: dict[int, set[int]] = defaultdict(set)  # by node, those of its saved tensors that the replay makes
    end = 0  # tick at which the replay ends: its last slot is filled
    for i in inside:
        node = index.save_nodes[i]
        if node not in given or saves.tensor[i] in given[node]:
            end = max(end, saves.pack[i])
            filled[node].add(saves.tensor[i])
    savers = {index.save_nodes[i] for i in inside}
    left = {f for f in given if index.nodes[f].enter <= end or f in savers}
    readers: Readers = defaultdict(set)
    wanted = {node: tensors for node, tensors in filled.items() if not index.is_function(node)}
    for f in index.within(members, index.functions):
        if index.nodes[f].enter <= end and not index.is_free(f):  # views run on tensors without data
            wanted[f] = filled[f] if f in left else set(index.reads(f))
    for node, tensors in wanted.items():
        for tensor in tensors:
            readers[tensor].add(node)
    left.discard(_ends_in(index, inside, given, end, filled))
    return readers, left


def _read(readers: Readers, made: Iterable[int], own: Collection[int]) -> set[int]:
    """Return which of these tensors, made by some functions of their `own`, the rest of a replay reads."""
    return {tensor for tensor in made if not readers[tensor].issubset(own)}


def _calls_as_units(
    index: Index,
    members: Members,
    left: set[int],
    idle: set[int],
    readers: Readers,
    whole: Collection[int] | None,
) -> Iterator[tuple[int, Units]]:
    """Yield the outermost calls that can each be one unit, with their functions that would else be units."""
    todo = [child for member in members for child in index.children[member] if not index.is_function(child)]
    while todo:
        call = todo.pop()
        own = tuple(f for f in index.within((call,), index.functions) if not index.is_free(f))
        if left.isdisjoint(own):
            continue
        allowed = (whole is None or call in whole) and idle.issuperset(own)
        if allowed and index.is_inside(own[0], members) and _is_closed(index, call, own, readers):
            yield call, own
        else:
            todo += [child for child in index.children[call] if not index.is_function(child)]


def _is_closed(index: Index, call: int, own: Units, readers: Readers) -> bool:
    """Whether a call, none of whose functions runs in a replay, acts on the replay only by what it returns.

    The call returns all that the replay reads of what it made. The replay reads all that the call makes and returns, or
    none of it: else some would be held in vain. The call reads nothing but what it was given. Nothing else holds what
    it made.
    """
    node = index.nodes[call]
    refused = (index.refused, index.lonely, index.refused_results)
    if any(call in each for each in refused) or index.within((call,), index.foreign):
        return False
    came, gone = {each.tensor for each in node.arguments}, set(node.outputs)
    if not came.isdisjoint(gone):
        return False
    for f in index.within((call,), index.functions):
        if any(tensor not in came and not index.covers((call,), index.births[tensor]) for tensor in index.reads(f)):
            return False
    made = {tensor for f in own for tensor in index.makes(f)}
    read = _read(readers, made, own)
    if any(tensor not in gone and index.natural[tensor] > node.exit for tensor in made):
        return False
    return not read or read == made & gone


def _ends_in(index: Index, inside: list[int], idle: Collection[int], end: int, filled: Mapping[int, set[int]]) -> int:
    """Find the idle function in which the replay ends, before that function has done anything; -1 if there is none.

    Frames may also fill slots of tensors that are older than the step, and cast weights anew for each function. So the
    replay does not end there if such an older tensor is saved later, or if the function saves a cast.
    """
    saves, nodes = index.profile.saves, index.save_nodes
    function = next((nodes[i] for i in inside if saves.pack[i] == end), -1)
    if function not in idle or not filled[function].issuperset(index.reads(function)):
        return -1
    last = max(saves.pack[i] for i in inside if nodes[i] == function)
    later = any(saves.tensor[i] < 0 and saves.pack[i] > last for i in inside)
    cast = any(nodes[i] == function and saves.tensor[i] in index.casts for i in inside)
    return -1 if later or cast or index.begins(function, last) else function
