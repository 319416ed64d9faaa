"""The corners of a menu, by minimum cuts: the best choice of units for every price on bytes.

    symbol   meaning                                             name here
    R_u      unit u runs again                                   a node with `members`
    A_t      item t is there in backward: held, or made again    a node
    K_u      something that u makes is there                     a node, if keeping a unit costs the host
    c_u b_t  seconds of u, bytes of t                            ``Unit.seconds``, ``Item.bytes``
    λ        price of a byte, in seconds                         ``byte_price / tick_price``

    minimise   Σ_u c_u R_u + λ Σ_t b_t (A_t − R of its maker)    held: there, and not made again
    where      A_t ≥ R_u     u reads or makes t                  A_t = 1     backward reads t
               R_u ≥ A_t     u makes t, and t cannot be held

All constraints are differences, so some optimum has whole numbers only. Its ones are a minimum closure: a set of nodes
of least weight that contains what each of its nodes implies. One minimum cut finds it. Two choices that are equally
good at some λ are corners if no third is better there; else the third splits the search in two. Times are whole
femtoseconds and bytes are whole, so that all arithmetic is exact.

Example: ``fc`` (4 s) makes 8 bytes out of 2, ``gelu`` (1 s) makes 8 out of those; backward reads all three tensors.
Recomputing nothing costs 0 s and holds 18 bytes. Recomputing gelu costs 1 s and holds 10 bytes. Recomputing both costs
5 s and holds 2 bytes. The first is best up to λ = 1/8, the last from λ = 4/8 on.

Source: Eisner and Severance 1976, "Mathematical techniques for efficient record segmentation", for the prices; Picard
1976, "Maximal closure of a graph", for each of them; Dinic 1970 for the flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ...solvers.deadline import NEVER, Deadline
from .dataflow import Dataflow

TICKS = 10**15  # parts of a second in which times are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """A dataflow as nodes: R by the first unit of each group, then A by item, then K by unit.

    Attributes:
        members: per node, the units that it recomputes; empty for A and K.
        held_bytes: per node, the bytes that choosing it adds to what is held.
        ticks: per node, the femtoseconds that choosing it adds.
        implies: per node, nodes that must be chosen with it.
        always: nodes that are chosen in any case.
    """

    members: list[list[int]]
    held_bytes: list[int]
    ticks: list[int]
    implies: list[list[int]]
    always: list[int]


def _nodes_of(flow: Dataflow, kept_seconds: float) -> _Nodes:
    """Make the nodes; O(units + items)."""
    n_units, keep_ticks = len(flow.units), round(kept_seconds * TICKS)
    n_nodes = 2 * n_units + len(flow.items)
    held_bytes, ticks = [0] * n_nodes, [0] * n_nodes
    members: list[list[int]] = [[] for _ in range(n_nodes)]
    implies: list[list[int]] = [[] for _ in range(n_nodes)]
    for u, unit in enumerate(flow.units):
        again, kept = flow.groups[u][0], n_nodes - n_units + u
        members[again].append(u)
        ticks[again] += round(unit.seconds * TICKS) - keep_ticks
        ticks[kept] += keep_ticks
        implies[again] += [n_units + t for t in (*unit.reads, *unit.makes)] + [kept] * bool(keep_ticks)
        for t in unit.makes if keep_ticks else ():
            implies[n_units + t].append(kept)
    for t, item in enumerate(flow.items):
        n_bytes = 0 if item.free else item.bytes
        held_bytes[n_units + t] += n_bytes
        if flow.makers[t]:
            maker = flow.groups[flow.makers[t][0]][0]
            held_bytes[maker] -= n_bytes
            if not flow.holdable[t]:
                implies[n_units + t].append(maker)
    always = [n_units + t for t, item in enumerate(flow.items) if item.saved]
    return _Nodes(members=members, held_bytes=held_bytes, ticks=ticks, implies=implies, always=always)


def _cheapest(nodes: _Nodes, byte_price: int, tick_price: int) -> tuple[int, int, tuple[int, ...]]:
    """Bytes, ticks and units of the choice of least ``byte_price × bytes + tick_price × ticks``."""
    weights = [byte_price * b + tick_price * s for b, s in zip(nodes.held_bytes, nodes.ticks, strict=True)]
    gain = 1 + sum(map(abs, weights))  # more than all weights together
    for node in nodes.always:
        weights[node] -= gain
    chosen = minimum_closure(weights, nodes.implies)
    units = sorted(u for node in chosen for u in nodes.members[node])
    return sum(nodes.held_bytes[n] for n in chosen), sum(nodes.ticks[n] for n in chosen), tuple(units)


def hull(flow: Dataflow, *, kept_seconds: float = 0.0, deadline: Deadline = NEVER) -> tuple[tuple[int, ...], ...]:
    """Choices on the lower hull of (held bytes, seconds), most bytes first.

    Args:
        flow: the dataflow.
        kept_seconds: what each kept unit costs the host.
        deadline: once it has passed, no further vertex is looked for.

    Returns:
        Units to recompute, per vertex of the hull.

    Exact, with two cuts for each vertex. A cut takes O(nodes² × arcs), in practice about linear time.
    """
    nodes = _nodes_of(flow, kept_seconds)
    first = _cheapest(nodes, 1, 1 + sum(map(abs, nodes.held_bytes)))  # fewest seconds, then fewest bytes
    last = _cheapest(nodes, 1 + sum(map(abs, nodes.ticks)), 1)
    found = [first]
    open_pairs = deque([(first, last)] if first[:2] != last[:2] else [])
    while open_pairs:
        left, right = open_pairs.popleft()
        byte_price, tick_price = right[1] - left[1], left[0] - right[0]
        middle = left if deadline.passed else _cheapest(nodes, byte_price, tick_price)
        if byte_price * middle[0] + tick_price * middle[1] < byte_price * left[0] + tick_price * left[1]:
            open_pairs += [(left, middle), (middle, right)]
        else:
            found.append(right)
    found.sort(key=lambda choice: -choice[0])
    return tuple(units for _, _, units in found)


def minimum_closure(weights: Sequence[int], implies: Sequence[Sequence[int]]) -> list[int]:
    """Return the set of nodes of least total weight that contains all that its nodes imply; of several, the smallest.

    Exact; a maximum flow after Dinic 1970, from nodes of negative to nodes of positive weight.
    """
    n = len(weights)
    source, sink = n, n + 1
    heads: list[int] = []
    room: list[int] = []
    arcs: list[list[int]] = [[] for _ in range(n + 2)]
    unlimited = sum(-w for w in weights if w < 0) + 1

    def connect(tail: int, head: int, limit: int) -> None:
        arcs[tail].append(len(heads))
        arcs[head].append(len(heads) + 1)
        heads.extend((head, tail))
        room.extend((limit, 0))

    for node, weight in enumerate(weights):
        if weight < 0:
            connect(source, node, -weight)
        elif weight > 0:
            connect(node, sink, weight)
        for other in implies[node]:
            connect(node, other, unlimited)
    while True:
        level = [-1] * (n + 2)
        level[source] = 0
        queue = deque([source])
        while queue:
            tail = queue.popleft()
            for arc in arcs[tail]:
                if room[arc] and level[heads[arc]] < 0:
                    level[heads[arc]] = level[tail] + 1
                    queue.append(heads[arc])
        if level[sink] < 0:
            return [node for node in range(n) if level[node] >= 0]
        _block(source, sink, level, arcs, heads, room)


def _block(
    source: int, sink: int, level: Sequence[int], arcs: Sequence[Sequence[int]], heads: Sequence[int], room: list[int]
) -> None:
    """Push flow along shortest paths until none is left."""
    tried = [0] * len(arcs)
    path: list[int] = []
    node = source
    while True:
        if node == sink:
            pushed = min(room[arc] for arc in path)
            for arc in path:
                room[arc] -= pushed
                room[arc ^ 1] += pushed
            full = next(i for i, arc in enumerate(path) if not room[arc])
            node = heads[path[full] ^ 1]
            del path[full:]
            continue
        while tried[node] < len(arcs[node]):
            arc = arcs[node][tried[node]]
            if room[arc] and level[heads[arc]] == level[node] + 1:
                path.append(arc)
                node = heads[arc]
                break
            tried[node] += 1
        else:
            if node == source:
                return
            node = heads[path.pop() ^ 1]
            tried[node] += 1
