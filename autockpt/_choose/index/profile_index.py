"""A profile with indexes for fast look-ups: what each call of its tree saves, makes, changes and takes. No torch."""

from __future__ import annotations

import bisect
import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from ..._data.hardware.paces import first_costs
from ..._data.profile import Profile
from ..._data.text.keys import name_of
from ...solvers.problem import Call
from .passes import Passes
from .products import multiplies
from .tree import Given, make_tree, number_calls, seconds_of
from .whole import UnitsAway

CASTS = "aten._to_copy."
"""Prefix of the name of the operator that casts."""

Ints = npt.NDArray[np.int64]
Members = tuple[int, ...]
"""The calls of a segment as nodes: siblings, in forward order."""


class Index:
    """A profile with indexes for fast look-ups. A run is a row of sibling calls that may become a segment.

    Attributes:
        profile: the profile.
        host: what recomputing costs the host.
        nodes: all calls in forward order.
        call_nodes: by call of the profile, its node.
        children: by node, the calls that it makes.
        functions: by torch function of the profile, its node; in ascending order.
        refused: by node, why it cannot run again.
        lonely: by node, why the call cannot be in a run with other calls.
        units: calls of FSDP2 units whose gathers are known. They can be in such a run although they are `lonely`.
        refused_results: by node of a function or call, why a replay cannot hand out its results.
        bytes: by tensor, its size.
        birth: by tensor, the tick of its allocation.
        natural: by tensor, the tick from which only saves keep it alive.
        birth_node: by tensor, the innermost node that allocated it; -1 if that was outside of forwards.
        save_nodes: by save, the node that made it.
        op_nodes: by operator, the node that ran it.
        operating: nodes that ran operators other than views.
        seconds: by node, its forward seconds; for a module call, the median over identical calls.
        changing: module calls that change buffers.
        foreign: module calls that run operators outside any torch function, as a custom autograd function does.
        multiplying: nodes that multiply matrices or convolve.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.host = first_costs(profile)
        tensors, saves, ops = profile.tensors, profile.saves, profile.ops
        self.call_nodes, self.functions = number_calls(profile)
        self.nodes = make_tree(profile, self.call_nodes, self.functions)
        self.children: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes[1:], 1):
            self.children[node.parent].append(number)
        refused = {what: profile.refused(what) for what in ("call", "run", "unit", "function", "result")}
        self.refused = {self.call_nodes[i]: reason for i, reason in refused["call"].items()}
        self.refused |= {self.functions[i]: reason for i, reason in refused["function"].items()}
        self.lonely = {self.call_nodes[i]: reason for i, reason in refused["run"].items()}
        self.units = UnitsAway(profile, self.call_nodes)
        self.refused_results = {self.functions[i]: reason for i, reason in refused["result"].items()}
        self.refused_results |= {self.call_nodes[i]: reason for i, reason in refused["unit"].items()}
        columns = (tensors.bytes, tensors.birth, tensors.natural)
        self.bytes, self.birth, self.natural = (np.array(column, np.int64) for column in columns)
        innermost = np.full(profile.ticks + 1, -1, np.int64)
        for number, node in enumerate(self.nodes):  # children write over their parents
            innermost[node.enter : node.exit] = number
        self._innermost = innermost
        self.birth_node = np.where(self.in_forward(self.birth), innermost[self.birth], -1)
        self.save_nodes = self._nodes_of(saves.function, saves.call)
        self.op_nodes = self._nodes_of(ops.function, ops.call)
        # By node, so that what a subtree saves is one slice.
        self._order = sorted(range(len(saves)), key=lambda i: (self.save_nodes[i], i))
        self._ordered_nodes = [self.save_nodes[i] for i in self._order]
        self.seconds = seconds_of(profile, self.nodes)
        self.changing = [n for n, call in zip(self.call_nodes, profile.calls, strict=True) if call.buffers]
        self.operating = frozenset(self.op_nodes)
        self.foreign = sorted({node for node in self.op_nodes if not self.is_function(node)})
        self.multiplying = sorted({n for n, name in zip(self.op_nodes, ops.name, strict=True) if multiplies(name)})

    def _nodes_of(self, functions: Iterable[int], calls: Iterable[int]) -> list[int]:
        return [self.functions[f] if f >= 0 else self.call_nodes[c] for f, c in zip(functions, calls, strict=True)]

    def in_forward(self, ticks: Ints) -> npt.NDArray[np.bool_]:
        """Return, for each tick, whether it lies in a forward, and not in a backward or after it."""
        found: npt.NDArray[np.bool_] = ticks < self.profile.forward_ticks
        for start, stop in self.profile.late_forwards:
            found |= (start <= ticks) & (ticks < stop)
        return found

    def call_at(self, tick: int) -> str:
        """Key of the innermost module call that was open at a tick of forward."""
        return self.nodes[int(self._innermost[tick])].record.key

    @functools.cached_property
    def writes(self) -> dict[int, list[int]]:
        """By node, the tensors that its own operators change in place, except those that a function itself made."""
        found: dict[int, list[int]] = defaultdict(list)
        for node, written in zip(self.op_nodes, self.profile.ops.writes, strict=True):
            found[node] += (t for t in written if not self.is_function(node) or self.birth_node[t] != node)
        return found

    @functools.cached_property
    def stated(self) -> tuple[Call, ...]:
        """The nodes as every problem of this step states them."""
        nodes = self.nodes
        return tuple(
            [Call(name=each.key, parent=each.parent, stop=each.stop, function=each.function >= 0) for each in nodes]
        )

    @functools.cached_property
    def passes(self) -> Passes:
        """The backward passes of the step."""
        return Passes(self.profile)

    @functools.cached_property
    def casts(self) -> frozenset[int]:
        """Tensors that are casts of tensors older than the step, such as casts of weights under autocast."""
        ops = self.profile.ops
        casts = (i for i, name in enumerate(ops.name) if name.startswith(CASTS) and not ops.reads[i])
        return frozenset(tensor for i in casts for tensor in ops.makes[i])

    @functools.cached_property
    def operators_of(self) -> Counter[int]:
        """By node, how many operators other than views it ran itself."""
        return Counter(self.op_nodes)

    def keys(self, nodes: Iterable[int]) -> tuple[str, ...]:
        """Return nodes as plans write them."""
        return tuple(self.nodes[node].key for node in nodes)

    def total_bytes(self, tensors: Iterable[int]) -> int:
        """Add up the sizes of tensors."""
        return sum(self.bytes_of[tensor] for tensor in tensors)

    @functools.cached_property
    def bytes_of(self) -> list[int]:
        """`bytes` as a list of Python ints, which are five times as fast to add one by one."""
        found: list[int] = self.bytes.tolist()
        return found

    @functools.cached_property
    def call_numbers(self) -> dict[int, int]:
        """By node of a module call, its number in the profile."""
        return {node: number for number, node in enumerate(self.call_nodes)}

    @functools.cached_property
    def births(self) -> list[int]:
        """`birth_node` as a list of Python ints; see `bytes_of`."""
        found: list[int] = self.birth_node.tolist()
        return found

    def is_function(self, node: int) -> bool:
        """Whether a node is a call of a torch function."""
        return self.nodes[node].function >= 0

    def reads(self, function: int) -> tuple[int, ...]:
        """Tensors that came into a torch function."""
        return self.profile.functions.reads[self.nodes[function].function]

    def makes(self, function: int) -> tuple[int, ...]:
        """Tensors that a torch function made."""
        return self.profile.functions.makes[self.nodes[function].function]

    def is_free(self, function: int) -> bool:
        """Whether a torch function only makes a view or reads shapes. It costs nothing, and works on hollow tensors."""
        functions, f = self.profile.functions, self.nodes[function].function
        if functions.makes[f] or functions.mutates[f]:
            return False
        if functions.alias[f]:
            return function not in self.operating  # else it reads values: `weights[index]` asks a tensor for a number
        return not functions.reads[f]  # else it reads values: `item`

    def is_keepable(self, function: int) -> bool:
        """Whether a replay can leave out a torch function."""
        functions, f = self.profile.functions, self.nodes[function].function
        return not (functions.alias[f] or functions.mutates[f] or function in self.refused_results)

    def is_inside(self, function: int, members: Members) -> bool:
        """Whether a function's caller is a member's module or lies in it; modules handed to a member do not count."""
        caller, *owners = (name_of(self.nodes[n].key) for n in (self.nodes[function].parent, *members))
        return any(not owner or f"{caller}.".startswith(f"{owner}.") for owner in owners)

    def _slices(self, members: Members, nodes: list[int]) -> Iterator[slice]:
        """Yield, for each member, the slice of `nodes` that lies in it. `nodes` are in ascending order."""
        for member in members:
            low = bisect.bisect_left(nodes, member)
            yield slice(low, bisect.bisect_left(nodes, self.nodes[member].stop, low))

    def within(self, members: Members, nodes: list[int]) -> list[int]:
        """Return those `nodes` that lie in the members, and not between them. `nodes` are in ascending order."""
        return [node for part in self._slices(members, nodes) for node in nodes[part]]

    def saves_of(self, members: Members) -> list[int]:
        """Saves made in the members."""
        return [i for part in self._slices(members, self._ordered_nodes) for i in self._order[part]]

    def member_of(self, members: Members, node: int) -> int:
        """The member in which a node lies; -1 if it lies in none."""
        place = bisect.bisect_right(members, node) - 1
        return members[place] if place >= 0 and node < self.nodes[members[place]].stop else -1

    def covers(self, members: Members, node: int) -> bool:
        """Whether a node lies in one of the members."""
        return self.member_of(members, node) >= 0

    def born_in(self, members: Members, until: int) -> Ints:
        """Tensors that the members allocate before a tick."""
        first, stop = self.nodes[members[0]], self.nodes[members[-1]].stop
        low, high = np.searchsorted(self.birth, (first.enter, until))
        born = self.birth_node[low:high]
        inside: npt.NDArray[np.bool_] = (born >= members[0]) & (born < stop)
        stops = np.array([self.nodes[member].stop for member in members], np.int64)
        if (stops[:-1] < members[1:]).any():  # the members are siblings, in order
            inside &= born < stops[np.searchsorted(members, born, "right") - 1]
        found: Ints = low + np.flatnonzero(inside)
        return found

    @functools.cached_property
    def _writers(self) -> dict[int, list[int]]:
        """By tensor, the nodes that change it in place, in ascending order."""
        found: dict[int, list[int]] = defaultdict(list)
        for node in sorted(self.writes):
            for tensor in self.writes[node]:
                found[tensor].append(node)
        return found

    @functools.cached_property
    def _savers(self) -> dict[int, list[int]]:
        """By tensor, the nodes that saved it, in ascending order."""
        found: dict[int, list[int]] = defaultdict(list)
        for i, node in zip(self._order, self._ordered_nodes, strict=True):
            found[self.profile.saves.tensor[i]].append(node)
        return found

    def is_changed_outside(self, tensor: int, members: Members) -> bool:
        """Whether calls outside a run change a tensor in place."""
        nodes = self._writers.get(tensor, [])
        return len(nodes) > len(self.within(members, nodes))

    def is_saved_outside(self, tensor: int, members: Members) -> bool:
        """Whether calls outside a run saved a tensor."""
        nodes = self._savers.get(tensor, [])
        return len(nodes) > len(self.within(members, nodes))

    def boundary(self, members: Members) -> dict[int, None]:
        """Tensors that come into a run from outside; the caller's own code between the members is outside too."""
        return dict.fromkeys(
            argument.tensor
            for member in members
            for argument in self.nodes[member].arguments
            if argument.tensor >= 0 and not self.handed_on(argument, members)
        )

    def handed_on(self, argument: Given, members: Members) -> bool:
        """Whether one of the run's own members returned the argument; O(log members)."""
        for source in argument.sources:
            place = bisect.bisect_left(members, source)
            if place < len(members) and members[place] == source:
                return True
        return False

    def reason(self, members: Members) -> str:
        """Why a run cannot be replayed exactly; empty if it can."""
        for member in members:
            if member in self.refused:
                return self.refused[member]
            if len(members) > 1 and member in self.lonely and member not in self.units:
                return self.lonely[member]
            # What a member of the run returned, the replay makes anew.
            if any(each.mutated and not self.handed_on(each, members) for each in self.nodes[member].arguments):
                return "one of its arguments is changed in place later"
        return ""

    def begins(self, node: int, tick: int) -> bool:
        """Whether a call has done anything before a tick.

        Operators save their arguments before they run, and their results after. So a torch function that is open at the
        tick, has allocated nothing yet, makes no view and changes nothing in place has not run.
        """
        call, functions = self.nodes[node], self.profile.functions
        if call.function < 0 or not call.enter < tick < call.exit:
            return call.enter < tick
        allocates = np.searchsorted(self.birth, call.enter) < np.searchsorted(self.birth, tick)
        return bool(allocates) or functions.alias[call.function] or functions.mutates[call.function]

    @functools.cached_property
    def partial_seconds(self) -> dict[tuple[int, int], float]:
        """By module call and its last save, the seconds from beginning to save: medians over identical calls."""
        saves = self.profile.saves
        groups: dict[tuple[str, int], list[tuple[int, int, float]]] = defaultdict(list)
        for number in self.call_nodes:
            inside, record = self.saves_of((number,)), self.nodes[number].record
            if inside:
                last = max(inside, key=lambda i: saves.pack[i])
                elapsed = max(saves.seconds[last] - record.enter_seconds, 0.0)
                groups[record.signature, len(inside)].append((number, last, elapsed))
        medians = [(group, statistics.median(elapsed for _, _, elapsed in group)) for group in groups.values()]
        return {(call, last): median for group, median in medians for call, last, _ in group}
