"""Joint graphs, as torch traces them, read as one step: fx graphs -> JointStep.

graph 0   placeholders ─▶ f0 f1 ─┬─▶ outputs          tangents ─▶ b3 b4 ─▶ gradients
                                 │ a link                ▲
graph 1                          └─▶ f2 f3 ─▶ outputs    └── b0 b1 b2 ◀─ tangents
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .._data.hardware.devices import Roofline
from .._torch import private as torch_private
from .._torch.devices.roofline import work_of
from .._torch.private import compiling as private
from .overwritten import overwritten_keys, reads_overwritten
from .scratch import scratch_bytes
from .step import JointStep, Operator

CPU = Roofline(half_flops=4e10, single_flops=4e10, bytes_per_second=6e9)
"""One thread of an x86-64 server, about. Only what operators take beside one another decides."""

LAUNCH_SECONDS = 2e-6
"""What any operator takes beside its work, about."""

OWN_NAMESPACES = ("aten", "prims")
"""Operators of others may keep something, or speak to somebody: nobody has promised that they run twice alike."""

Links = Mapping[tuple[int, int], tuple[int, int]]
"""By a later call of a graph and its argument, the earlier call and its output that is handed over."""

Key = tuple[int, int]
"""A storage: the call of a graph whose it is, and torch's key of it. A graph may be called more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A joint graph that was traced.

    Attributes:
        joint: the graph, in the form in which torch's partitioner cuts it.
        n_outputs: how many of its outputs are forward's.
        handed: numbers of those that the caller of the model gets.
        overwritten: places of nodes whose memory a graph of the step overwrites.
    """

    joint: fx.GraphModule
    n_outputs: int
    handed: frozenset[int] = frozenset()
    overwritten: frozenset[int] = frozenset()

    @property
    def nodes(self) -> list[fx.Node]:
        """Its nodes in order."""
        return [*self.joint.graph.nodes]


def read(
    graphs: Sequence[Traced],
    links: Links,
    *,
    step_bytes: int = 0,
    room_bytes: int | None = None,
    rates: Roofline = CPU,
) -> JointStep:
    """Read joint graphs as one step.

    Args:
        graphs: that of each call, in the order in which forward makes them.
        links: what one hands to a later one.
        step_bytes: what the optimizer's step takes for a moment, after backward.
        room_bytes: operators are run alone, on zeros, to see what their kernels hold. One that reads and returns more
            than this is not run, and taken to hold nothing. None for no such bound.
        rates: of the device, for the seconds of operators.
    """
    reader = _Reader(graphs, links, rates, room_bytes)
    forward = [each for number in range(len(graphs)) for each in reader.forward(number)]
    backward = [*reader.loss()]
    backward += [each for number in reversed(range(len(graphs))) for each in reader.backward(number)]
    backward += [Operator(name="the optimizer's step", place=-1, scratch_bytes=step_bytes)] if step_bytes else []
    made = {storage for each in (*forward, *backward) for storage in each.makes}
    sizes = [0] * len(reader.number)
    for key, storage in reader.number.items():
        sizes[storage] = reader.bytes[key]
    return JointStep(
        forward=tuple(forward),
        backward=tuple(backward),
        storage_bytes=tuple(sizes),
        outputs=frozenset(reader.outputs & made) - reader.crossing,
        gradients=frozenset(reader.gradients & made),
        crossing=frozenset(reader.crossing & made),
    )


@dataclass
class _Reader:
    """What is known of the storages of several graphs while they are read.

    Attributes:
        stale: for each call, torch's keys of storages that are overwritten before backward runs.
        same: storages that stand for another: what a later graph is given, and the gradients of what it was given.
        given: storages of placeholders, which stand before and after the step.
        number: by storage, its number in the step.
    """

    graphs: Sequence[Traced]
    links: Links
    rates: Roofline
    room_bytes: int | None
    stale: list[frozenset[int]] = field(default_factory=list)
    same: dict[Key, Key] = field(default_factory=dict)
    given: set[Key] = field(default_factory=set)
    number: dict[Key, int] = field(default_factory=dict)
    bytes: dict[Key, int] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)
    outputs: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)
    crossing: set[int] = field(default_factory=set)
    scratch: dict[fx.Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for (later, argument), (earlier, output) in self.links.items():
            self._link(later, argument, earlier, output)
        for call, traced in enumerate(self.graphs):
            for node in traced.nodes:
                if node.op in ("placeholder", "get_attr") and not private.is_tangent(node):
                    self.given.update(self._keys(call, node))
        self.given -= {self._root(key) for key in self.same}
        self.stale = [overwritten_keys(each.joint, each.overwritten) for each in self.graphs]
        every = dict.fromkeys(node for traced in self.graphs for node in traced.nodes)
        self.scratch = scratch_bytes(node for node in every if node.op == "call_function" and self._has_room(node))

    def _has_room(self, node: fx.Node) -> bool:
        """Whether what an operator reads and returns fits the room to run it alone."""
        given = (each for each in tree_leaves((node.args, dict(node.kwargs))) if isinstance(each, fx.Node))
        around_bytes = sum(size for each in (node, *given) for size in storages_of(each).values())
        return self.room_bytes is None or around_bytes <= self.room_bytes

    def _link(self, later: int, argument: int, earlier: int, output: int) -> None:
        """Let the storages of a graph's argument be those of an earlier graph's output, and so with their gradients."""
        source, target = self.graphs[earlier], self.graphs[later]
        made = next(
            (n for n, number, _ in private.outputs_of(source.joint) if number == output and n is not None), None
        )
        placeholders = [n for n in target.nodes if n.op == "placeholder" and private.argument_of(n) == argument]
        own = {key for n in source.nodes if n.op in ("placeholder", "get_attr") for key in storages_of(n)}
        if made is None or not placeholders or not own.isdisjoint(storages_of(made)):
            return
        self._let_be_same((later, placeholders[0]), (earlier, made))
        gradient = next((n for n, _, of in private.outputs_of(target.joint) if of == argument and n is not None), None)
        tangent = next(
            (n for n in source.nodes if private.is_tangent(n) and private.output_of_tangent(n) == output), None
        )
        if gradient is not None and tangent is not None:
            self._let_be_same((earlier, tangent), (later, gradient))

    def _let_be_same(self, node: tuple[int, fx.Node], other: tuple[int, fx.Node]) -> None:
        one, two = ([(call, key) for key in storages_of(each)] for call, each in (node, other))
        if len(one) == len(two) == 1:
            self.same[one[0]] = two[0]

    def _root(self, key: Key) -> Key:
        while key in self.same:
            key = self.same[key]
        return key

    def _keys(self, call: int, node: fx.Node) -> list[Key]:
        return [self._root((call, key)) for key in storages_of(node)]

    def _numbers(self, call: int, node: fx.Node) -> list[int]:
        """Return the storages of a node's results, without those that stand before and after the step."""
        found = []
        for key, size in storages_of(node).items():
            root = self._root((call, key))
            if root not in self.given:
                self.bytes.setdefault(root, size)
                found.append(self.number.setdefault(root, len(self.number)))
        return [*dict.fromkeys(found)]

    def forward(self, number: int) -> Iterator[Operator]:
        """Yield the operators of a graph's forward. Its outputs are noted."""
        traced = self.graphs[number]
        place = {node: i for i, node in enumerate(traced.nodes)}
        for node in forward_of(traced):
            yield from self._operator(node, number, place[node])
        handed = {output for earlier, output in self.links.values() if earlier == number} - traced.handed
        for value, output, _ in private.outputs_of(traced.joint)[: traced.n_outputs]:
            if value is not None:
                (self.crossing if output in handed else self.outputs).update(self._numbers(number, value))

    def loss(self) -> Iterator[Operator]:
        """Yield what stands for the caller's loss where no output is a scalar: three copies, in single precision.

        That is what a cross-entropy of all outputs takes. The gradients that it hands back are counted apart.
        """
        open_sizes = [
            private.hint(node.meta["val"].numel())
            for call, traced in enumerate(self.graphs)
            for node in traced.nodes
            if private.is_tangent(node) and not any((call, key) in self.same for key in storages_of(node))
        ]
        if open_sizes and min(open_sizes) > 1:
            copies = sum(open_sizes)
            yield Operator(name="loss", graph=len(self.graphs) - 1, place=-1, scratch_bytes=3 * 4 * copies)

    def backward(self, number: int) -> Iterator[Operator]:
        """Yield the operators of a graph's backward, in the order in which torch runs them."""
        traced = self.graphs[number]
        place = {node: i for i, node in enumerate(traced.nodes)}
        tangents = [
            s for n in traced.nodes if private.is_tangent(n) for s in self._numbers(number, n) if s not in self.made
        ]
        # What the caller's backward begins with, a one, is the caller's until the step ends.
        scalars = [n for n in traced.nodes if private.is_tangent(n) and n.meta["val"].numel() == 1]
        self.gradients.update(s for n in scalars for s in self._numbers(number, n))
        for node in _in_order(traced):
            found = [*self._operator(node, number, place[node], tuple(dict.fromkeys(tangents)))]
            tangents = [] if found else tangents
            yield from found
        for value, _, _ in private.outputs_of(traced.joint)[traced.n_outputs :]:
            if value is not None and not private.is_tangent(value):
                self.gradients.update(self._numbers(number, value))
        self.gradients -= {self.number[self._root(key)] for key in self.same if self._root(key) in self.number}

    def _operator(self, node: fx.Node, graph: int, place: int, also: tuple[int, ...] = ()) -> Iterator[Operator]:
        """Yield a node as an operator; nothing for a view, or an item of several results."""
        results = self._numbers(graph, node)
        reads = tuple(dict.fromkeys(s for each in node.all_input_nodes for s in self._numbers(graph, each)))
        makes = [storage for storage in results if storage not in self.made]
        kept = _must_not_run_twice(node)
        if not makes and not kept and set(results) <= set(reads) and results:
            return
        if not makes and not kept and not reads:
            return
        kept = kept or reads_overwritten(node, self.stale[graph])
        makes += [storage for storage in also if storage not in self.made]
        self.made.update(makes)
        yield Operator(
            name=node.name,
            module=private.module_of_node(node),
            graph=graph,
            place=place,
            seconds=_seconds(node, self.rates),
            reads=tuple(storage for storage in reads if storage not in makes),
            makes=tuple(makes),
            scratch_bytes=self.scratch.get(node, 0),
            kept=kept,
        )


def storages_of(node: fx.Node) -> dict[int, int]:
    """Return the storages of a node's results, with their bytes."""
    found = {}
    for tensor in tree_leaves(node.meta.get("val")):
        if isinstance(tensor, torch.Tensor) and (key := torch_private.storage_key(tensor)):
            found[key] = private.hint(tensor.untyped_storage().nbytes())
    return found


def forward_of(traced: Traced) -> list[fx.Node]:
    """Return the operators of forward, views and items of several results among them, in order."""
    late = set(backward_of(traced))
    return [node for node in traced.nodes if node.op == "call_function" and node not in late]


def backward_of(traced: Traced) -> list[fx.Node]:
    """Return the operators that depend on a tangent, or were called while backward was traced."""
    found: dict[fx.Node, None] = {}
    for node in traced.nodes:
        late = private.is_traced_in_backward(node) or any(each in found for each in node.all_input_nodes)
        if private.is_tangent(node) or (node.op == "call_function" and late):
            found[node] = None
    return [node for node in found if node.op == "call_function"]


def _in_order(traced: Traced) -> list[fx.Node]:
    """Return the operators of backward in the order in which torch's partitioner puts them.

    From the first that reads a tangent on they come as they were traced, each after what it needs.
    """
    nodes = traced.nodes
    place = {node: i for i, node in enumerate(nodes)}
    late = backward_of(traced)
    todo, done = set(late), set[fx.Node]()
    first = min((place[user] for node in nodes if private.is_tangent(node) for user in node.users), default=0)
    order: list[fx.Node] = []
    results = [value for value, _, _ in private.outputs_of(traced.joint)[traced.n_outputs :] if value is not None]
    for node in (*(each for each in late if place[each] >= first), *results):
        needed, open_nodes = set[fx.Node](), [node]
        while open_nodes:
            each = open_nodes.pop()
            if each in todo and each not in done and each not in needed:
                needed.add(each)
                open_nodes += each.all_input_nodes
        order += sorted(needed, key=place.__getitem__)
        done |= needed
    return order


def _must_not_run_twice(node: fx.Node) -> bool:
    """Whether an operator draws, writes, speaks to others or is nobody's promise; see `Operator.kept`."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", "") != "_operator"  # what takes items, and computes sizes
    draws = torch.Tag.nondeterministic_seeded in target.tags
    return draws or target._schema.is_mutable or target.namespace not in OWN_NAMESPACES


def _seconds(node: fx.Node, rates: Roofline) -> float:
    """Return what an operator takes, as a roofline says."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return 0.0
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta.get("val"))
    output = node.meta.get("val")
    every = [each for each in tree_leaves((args, kwargs, output)) if isinstance(each, torch.Tensor)]
    work = work_of(target, (args, kwargs), output, every)
    if work is None:
        return 0.0
    moved = work._replace(moved_bytes=private.hint(work.moved_bytes), flops=private.hint(work.flops))
    return moved.seconds(rates) + LAUNCH_SECONDS
