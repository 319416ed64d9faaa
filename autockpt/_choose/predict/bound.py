"""How much any method would have to recompute, operator by operator: what a plan's cost is held against. No torch.

Every recorded operator is free to be kept, recomputed or skipped, as often as it takes; Python, host seconds and what
is allocated while something is recomputed count nothing.
"""

from __future__ import annotations

import bisect
import math

from ..candidates.problem import base_steps
from ..dataflow.bound import Lives, peak_bound
from ..dataflow.dataflow import Dataflow, Item, Unit
from ..index.profile_index import Index

BOUND_SECONDS = 1.0


def lay_out(index: Index) -> tuple[Dataflow, Lives]:
    """Return the operators of a profile, and when what stands, for bounding what any method recomputes.

    O(operators and saves).
    """
    flow, tensors, op_ticks = state_operators(index)
    saves, ticks = index.profile.saves, index.profile.ticks
    free_ticks = index.natural[tensors].tolist()
    edges = sorted(cut for cut in {0, *saves.release, *saves.unpack, *free_ticks} if cut < ticks)

    def step(tick: int) -> int:
        return bisect.bisect_right(edges, tick) - 1

    reads: dict[int, set[int]] = {tensor: set() for tensor in tensors}
    for tensor, unpack, release in zip(saves.tensor, saves.unpack, saves.release, strict=True):
        if tensor in reads and unpack < ticks:
            reads[tensor].update(range(step(unpack), bisect.bisect_left(edges, release)))
    steps = base_steps(index, edges)
    return flow, Lives(
        base_bytes=tuple(each.base_bytes for each in steps),
        run_step=tuple(map(step, op_ticks)),
        free_step=tuple(bisect.bisect_left(edges, t) if t < ticks else len(steps) for t in free_ticks),
        read_steps=tuple(tuple(sorted(reads[tensor])) for tensor in tensors),
    )


def least_seconds(flow: Dataflow, lives: Lives, budget_bytes: int, *, seconds: float = BOUND_SECONDS) -> float | None:
    """Bound from below the recompute seconds of any method that keeps the step within a peak.

    After so many seconds the bound reached is returned, which is weaker and as valid; None where nothing is known,
    since no operators were recorded or no method fits.
    """
    if not flow.units:
        return None
    least = peak_bound(flow, lives, budget_bytes, seconds=seconds).seconds
    return None if math.isinf(least) else least


def state_operators(index: Index) -> tuple[Dataflow, list[int], list[int]]:
    """Return all operators as units, the tensor that each item is, and the tick at which each operator ran."""
    ops, saves = index.profile.ops, index.profile.saves
    saved = {t for t, unpack in zip(saves.tensor, saves.unpack, strict=True) if unpack < index.profile.ticks}
    made = {tensor for makes in ops.makes for tensor in makes}
    tensors = sorted(made.union(*ops.reads, saved) - {-1})
    number = {tensor: i for i, tensor in enumerate(tensors)}
    # What no operator made (code outside the model, or inside a kernel) costs nothing to hold: no method is asked to.
    items = [Item(bytes=int(index.bytes[t]), saved=t in saved, free=t not in made) for t in tensors]
    units = [
        Unit(
            name=name,
            seconds=seconds,
            reads=tuple(dict.fromkeys(number[tensor] for tensor in reads)),
            makes=tuple(dict.fromkeys(number[tensor] for tensor in (*makes, *made.intersection(writes)))),
        )
        for name, seconds, reads, makes, writes in zip(
            ops.name, ops.seconds, ops.reads, ops.makes, ops.writes, strict=True
        )
    ]
    ticks = [
        max((int(index.birth[tensor]) for tensor in makes), default=index.nodes[node].enter)
        for node, makes in zip(index.op_nodes, ops.makes, strict=True)
    ]
    return Dataflow(units=tuple(units), items=tuple(items)), tensors, ticks
