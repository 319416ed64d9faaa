"""The corners of a menu, by minimum cuts: the best choice of units for every price on bytes.

    symbol   meaning                                             name here
    R_u      unit u runs again                                   a node with `members`
    A_t      item t is there in backward: held, or made again    a node
    K_u      something that u makes is there                     a node, where keeping a unit costs the host
    c_u b_t  seconds of u, bytes of t                            ``Unit.seconds``, ``Item.bytes``
    λ        price of a byte, in seconds                         ``byte_price / tick_price``

    minimise   Σ_u c_u R_u + λ Σ_t b_t (A_t − R of its maker)    held: there, and not made again
    where      A_t ≥ R_u     u reads or makes t                  A_t = 1     backward reads t
               R_u ≥ A_t     u makes t, and t cannot be held

All constraints are differences, so the least is taken at whole numbers, and choosing what is 1 is a minimum closure: a
set of nodes of least weight that contains what each of its nodes implies, found by one minimum cut. Two choices that
are equally good at some λ are corners if no third is better there; else the third splits the search in two. Times are
whole femtoseconds and bytes are whole, so that all arithmetic is exact.

Example: ``fc`` (4 s) makes 8 bytes out of 2, ``gelu`` (1 s) makes 8 out of those; backward reads all three. Nothing
held again costs nothing and holds 18 bytes; gelu again, 1 s and 10 bytes; both, 5 s and 2 bytes. The first is best up
to λ = 1/8, the last from λ = 4/8 on.

Source: Eisner and Severance 1976, "Mathematical techniques for efficient record segmentation", for the prices; Picard
1976, "Maximal closure of a graph", for each of them; Dinic 1970 for the flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .dataflow import Dataflow

TICKS = 10**15  # parts of a second in which times are counted


class Closure:
    """A dataflow as nodes, without those whose value is fixed.

    Attributes:
        members: per node, the units that it recomputes; empty for A and K.
        held_bytes: per node, what choosing it adds to the held bytes; so do `ticks`, in femtoseconds, to the seconds.
        implies: per node, nodes that must be chosen with it.
        always: units that run again in any case.
    """

    def __init__(self, flow: Dataflow, kept_seconds: float) -> None:
        """Make the nodes; O(units + items)."""
        n_units = len(flow.units)
        r_node, a_node = [group[0] for group in flow.groups], [n_units + t for t in range(len(flow.items))]
        k_node = [n_units + len(flow.items) + u for u in range(n_units)]
        n_nodes = 2 * n_units + len(flow.items)
        weight_bytes, ticks = [0] * n_nodes, [0] * n_nodes
        members: list[list[int]] = [[] for _ in range(n_nodes)]
        implies: list[list[int]] = [[] for _ in range(n_nodes)]
        keep_ticks = round(kept_seconds * TICKS)
        for u, unit in enumerate(flow.units):
            members[r_node[u]].append(u)
            ticks[r_node[u]] += round(unit.seconds * TICKS) - keep_ticks
            ticks[k_node[u]] += keep_ticks
            implies[r_node[u]] += [a_node[t] for t in (*unit.reads, *unit.makes)]
            if keep_ticks:
                implies[r_node[u]].append(k_node[u])
                for t in unit.makes:
                    implies[a_node[t]].append(k_node[u])
        for t, item in enumerate(flow.items):
            n_bytes = 0 if item.free else item.bytes
            weight_bytes[a_node[t]] += n_bytes
            if flow.makers[t]:
                maker = r_node[flow.makers[t][0]]
                weight_bytes[maker] -= n_bytes
                if not flow.holdable[t]:
                    implies[a_node[t]].append(maker)

        chosen = _reached([a_node[t] for t, item in enumerate(flow.items) if item.saved], implies)
        used = [bool(weight_bytes[n] or ticks[n] or implies[n] or members[n]) for n in range(n_nodes)]
        free = [n for n in range(n_nodes) if used[n] and not chosen[n]]
        number = {node: i for i, node in enumerate(free)}
        self.members = [tuple(members[node]) for node in free]
        self.held_bytes = [weight_bytes[node] for node in free]
        self.ticks = [ticks[node] for node in free]
        self.implies = [tuple({number[other] for other in implies[node] if other in number}) for node in free]
        self.always = [u for u in range(n_units) if chosen[r_node[u]]]

    def cheapest(self, byte_price: int, tick_price: int) -> tuple[int, int, tuple[int, ...]]:
        """Bytes, ticks and units of the choice of least ``byte_price × bytes + tick_price × ticks``.

        Bytes and ticks count from an origin that is the same for all choices.
        """
        weights = [byte_price * b + tick_price * s for b, s in zip(self.held_bytes, self.ticks, strict=True)]
        chosen = minimum_closure(weights, self.implies)
        units = sorted(u for node in chosen for u in self.members[node])
        return sum(self.held_bytes[n] for n in chosen), sum(self.ticks[n] for n in chosen), (*self.always, *units)


def hull(flow: Dataflow, *, kept_seconds: float = 0.0) -> tuple[tuple[int, ...], ...]:
    """Choices on the lower hull of (held bytes, seconds), most bytes first.

    Args:
        flow: the dataflow.
        kept_seconds: what each kept unit costs the host.

    Returns:
        Units to recompute, per vertex of the hull.

    Exact, two cuts a vertex; a cut is O(nodes² × arcs), in practice about linear.
    """
    closure = Closure(flow, kept_seconds)
    most_bytes = 1 + sum(abs(b) for b in closure.held_bytes)
    most_ticks = 1 + sum(abs(s) for s in closure.ticks)
    first = closure.cheapest(1, most_bytes)  # fewest seconds, then fewest bytes
    last = closure.cheapest(most_ticks, 1)
    found = [first]
    open_pairs = deque([(first, last)] if first[:2] != last[:2] else [])
    while open_pairs:
        left, right = open_pairs.popleft()
        byte_price, tick_price = right[1] - left[1], left[0] - right[0]
        middle = closure.cheapest(byte_price, tick_price)
        if byte_price * middle[0] + tick_price * middle[1] < byte_price * left[0] + tick_price * left[1]:
            open_pairs += [(left, middle), (middle, right)]
        else:
            found.append(right)
    found.sort(key=lambda choice: -choice[0])
    return tuple(units for _, _, units in found)


def minimum_closure(weights: Sequence[int], implies: Sequence[Sequence[int]]) -> list[int]:
    """Nodes of least total weight that contain all that they imply; of several such sets the smallest.

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


def _reached(starts: Sequence[int], arcs: Sequence[Sequence[int]]) -> list[bool]:
    reached = [False] * len(arcs)
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if not reached[node]:
            reached[node] = True
            waiting.extend(arcs[node])
    return reached
