"""A backward that never ran, made from the autograd graph of a forward that did.

The graph knows which nodes run (those that a leaf needs), in which order (decreasing sequence number, and
gradients of leaves as soon as they are complete), how large each gradient is (the metadata of the forward's
outputs) and which saves each node reads. What it does not know is what a node allocates for itself; that comes
from trying the convolutions, and from `TRANSIENT_OUTPUTS`, a table for the few other nodes of which it matters.

    node           unpack saves · bear gradients of its inputs · drop its own gradient · release saves
    accumulation   in place where nothing else refers to the first gradient, else into a new one
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from .. import _torch_private as private
from .assemble import Lifetimes, WatchedRun, lifetimes
from .convolutions import Convolution, Layout, convolution_of
from .watch import Mark

TRANSIENT_OUTPUTS = {
    "PowBackward0": 2,
    "RsqrtBackward0": 2,
    "DivBackward0": 1,
    "ConvolutionBackward0": 1,
}
"""What a node allocates and frees while it runs, in multiples of its largest gradient; see `transients` too."""

_VIEWS = """
    Add Alias AsStrided Detach Expand Permute ReshapeAlias Squeeze Sub Sum T Transpose UnsafeView Unsqueeze View ViewAs
"""
ALIASING = frozenset(f"{name}Backward{overload}" for name in _VIEWS.split() for overload in range(3))
"""Nodes whose gradients are views of, or the very, gradient that came in (where the sizes say so)."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One autograd node.

    Attributes:
        name: kind of node.
        sequence: sequence number; nodes run in decreasing order.
        edges: for each input of the forward operator, the node that made it and which of its outputs it was.
        output_bytes: bytes of each of the forward operator's outputs, thus of the gradients that come in.
        leaf: position of the leaf among the step's leaves, for a node that accumulates a leaf's gradient.
        convolution: whose backward the node runs, None where it is none.
    """

    name: str
    sequence: int
    edges: tuple[tuple[int, int] | None, ...]
    output_bytes: tuple[int, ...]
    leaf: int | None = None
    convolution: Convolution | None = None


def read_graph(
    scalar: torch.Tensor, leaves: tuple[torch.Tensor, ...], saved: Mapping[int, Sequence[Layout]]
) -> list[GraphNode]:
    """Copy the graph behind `scalar` into plain data; node 0 is the scalar's own.

    Args:
        scalar: the loss.
        leaves: what gradients are taken of.
        saved: by sequence number of the node, what it saved.
    """
    leaf_numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
    root = scalar.grad_fn
    numbers: dict[Any, int] = {root: 0}
    nodes, found = [root], []
    for node in nodes:  # grows while it runs
        edges: list[tuple[int, int] | None] = []
        for target, output in node.next_functions:  # type: ignore[union-attr]
            if target is None:
                edges.append(None)
                continue
            if target not in numbers:
                numbers[target] = len(nodes)
                nodes.append(target)
            edges.append((numbers[target], output))
        variable, number = getattr(node, "variable", None), private.sequence_number(node)
        found.append(
            GraphNode(
                name=type(node).__name__,
                sequence=number,
                edges=tuple(edges),
                output_bytes=private.output_bytes(node),
                leaf=leaf_numbers.get(id(variable)) if variable is not None else None,
                convolution=convolution_of(node, saved.get(number, ())),
            )
        )
    return found


@dataclass(slots=True)
class _Gradient:
    """Storage of a gradient while backward runs."""

    tensor: int  # number in the lifetimes, -1 where it has no storage of its own
    bytes: int
    references: int = 0


@dataclass(slots=True)
class _Backward:
    """The clock, and what was born on it."""

    found: Lifetimes
    marks: list[Mark]
    gradients: list[_Gradient] = field(default_factory=list)

    def bear(self, size: int) -> _Gradient:
        self.found.bytes.append(size)
        self.found.birth.append(self.found.ticks)
        self.found.death.append(-1)
        self.found.ticks += 1
        return _Gradient(len(self.found.bytes) - 1, size)

    def drop(self, gradient: _Gradient) -> None:
        gradient.references -= 1
        if gradient.references <= 0 and gradient.tensor >= 0:
            self.found.death[gradient.tensor] = self.found.ticks

    def mark(self, kind: Any, index: int) -> None:
        self.marks.append(Mark(kind, index))
        self.found.mark_ticks.append(self.found.ticks)
        self.found.mark_tensors.append(())
        self.found.ticks += 1


def synthesise_backward(
    run: WatchedRun,
    graph: list[GraphNode],
    has_gradient: list[bool],
    transients: Mapping[Convolution, int] = MappingProxyType({}),
) -> tuple[WatchedRun, Lifetimes, list[int]]:
    """Append a backward to a forward whose saves were dropped.

    Args:
        run: that forward.
        graph: the autograd graph of its loss.
        has_gradient: for each leaf, whether a gradient existed before the step.
        transients: what convolutions were seen to take in backward.

    Returns:
        The whole step as a run (without a tape), its lifetimes, and the natural death of each tensor.
    """
    forward = lifetimes(run)
    end = forward.first(run, "forward_end")
    kept = [i for i, tick in enumerate(forward.mark_ticks) if tick <= end]
    births = [i for i, tick in enumerate(forward.birth) if tick <= end]
    found = Lifetimes(
        bytes=[forward.bytes[i] for i in births],
        birth=[forward.birth[i] for i in births],
        death=[forward.death[i] for i in births],
        mark_ticks=[forward.mark_ticks[i] for i in kept],
        mark_tensors=[forward.mark_tensors[i] for i in kept],
        ticks=end + 1,
    )
    backward = _Backward(found, [run.marks[i] for i in kept])
    saves: dict[int, list[int]] = defaultdict(list)  # sequence number of a node -> its saves
    saved_tensors: list[int] = []
    for mark, tensors in zip(backward.marks, found.mark_tensors, strict=True):
        if mark.kind == "pack":
            saves[mark.node].append(len(saved_tensors))
            saved_tensors.append(tensors[0])

    _run_engine(backward, graph, saves, has_gradient, transients)
    backward.mark("backward_end", 0)

    natural = [death if death <= end else found.ticks for death in found.death[: len(births)]]
    natural += [death if death >= 0 else found.ticks for death in found.death[len(births) :]]
    found.death = list(natural)
    for mark, tick in zip(backward.marks, found.mark_ticks, strict=True):
        if mark.kind == "release" and (tensor := saved_tensors[mark.index]) >= 0:
            found.death[tensor] = max(found.death[tensor], tick + 1)
    return WatchedRun([], backward.marks, run.calls, run.functions, run.reached), found, natural


def _run_engine(
    backward: _Backward,
    graph: list[GraphNode],
    saves: dict[int, list[int]],
    has_gradient: list[bool],
    transients: Mapping[Convolution, int],
) -> None:
    """WatchedRun the nodes in autograd's order."""
    waiting = [0] * len(graph)
    for node in graph:
        for edge in node.edges:
            if edge is not None:
                waiting[edge[0]] += 1
    buffers: dict[int, dict[int, _Gradient]] = defaultdict(dict)
    first = backward.bear(graph[0].output_bytes[0])
    first.references = 1
    buffers[0][0] = first
    ready = [(-graph[0].sequence, 0)]
    while ready:
        _, number = heapq.heappop(ready)
        node, incoming = graph[number], buffers.pop(number, {})
        if node.leaf is not None:
            _accumulate_leaf(backward, incoming, has_gradient[node.leaf])
            continue
        for save in saves.get(node.sequence, ()):
            backward.mark("unpack", save)
        outgoing = _bear_gradients(backward, graph, node, incoming, transients)
        for gradient in incoming.values():
            backward.drop(gradient)
        for save in saves.get(node.sequence, ()):
            backward.mark("release", save)
        for edge, sent in zip(node.edges, outgoing, strict=True):
            if edge is None:
                continue
            if sent is not None:
                _add(backward, buffers[edge[0]], edge[1], sent)
            waiting[edge[0]] -= 1
            if waiting[edge[0]] == 0:
                heapq.heappush(ready, (-graph[edge[0]].sequence, edge[0]))


def _bear_gradients(
    backward: _Backward,
    graph: list[GraphNode],
    node: GraphNode,
    incoming: dict[int, _Gradient],
    transients: Mapping[Convolution, int],
) -> list[_Gradient | None]:
    """Gradients of a node's inputs: views of what came in, or new."""
    sizes = [graph[edge[0]].output_bytes[edge[1]] if edge is not None else 0 for edge in node.edges]
    transient = TRANSIENT_OUTPUTS.get(node.name, 0) * max(sizes, default=0)
    if node.convolution is not None:
        transient = transients.get(node.convolution, transient)
    workspace = backward.bear(transient) if transient else None
    outgoing: list[_Gradient | None] = []
    for edge, size in zip(node.edges, sizes, strict=True):
        if edge is None or not incoming:
            outgoing.append(None)
            continue
        source = next(iter(incoming.values()))
        reduces = "Sum" in node.name or "Expand" in node.name
        if node.name in ALIASING and (size == source.bytes or ("Sum" in node.name and size > source.bytes)):
            gradient = source if size == source.bytes else _Gradient(-1, size)
        elif node.name in ALIASING and not reduces and node.name[:3] not in ("Add", "Sub"):
            gradient = source  # a view of part of it
        else:
            gradient = backward.bear(size)
        gradient.references += 1
        outgoing.append(gradient)
    if workspace is not None:
        backward.drop(workspace)
    return outgoing


def _add(backward: _Backward, buffer: dict[int, _Gradient], output: int, gradient: _Gradient) -> None:
    """Add a gradient to what a node has received so far for one of its outputs."""
    before = buffer.get(output)
    if before is None:
        buffer[output] = gradient
        return
    if before.references == 1 and before.tensor >= 0:
        backward.drop(gradient)
        return
    total = backward.bear(max(before.bytes, gradient.bytes))
    total.references = 1
    backward.drop(before)
    backward.drop(gradient)
    buffer[output] = total


def _accumulate_leaf(backward: _Backward, incoming: dict[int, _Gradient], exists: bool) -> None:
    """Keep a leaf's gradient to the end, or add it to the one that exists."""
    for gradient in incoming.values():
        if exists:
            backward.drop(gradient)
        elif gradient.references > 1 or gradient.tensor < 0:
            backward.bear(gradient.bytes).references = 1  # shared with another gradient: copied
            backward.drop(gradient)
