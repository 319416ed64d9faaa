"""Ways to recompute that somebody names, and that nobody else looks for.

layers                 runs of as many as ``uniform:N`` says; of a long row not all lengths are candidates
the whole model        its calls as one run, from the first that saves something to the last
functions to run       the call whose code calls them, where they run again and all else is kept
functions to keep      calls that may be recomputed, where all else runs again

    q, k ─▶ [scores] ─▶ s ─▶ [softmax] ─▶ p ─▶ [product] ─▶ y       softmax is named: p is dropped, and made again
    held       runs too        runs             keeps p's place     scores runs too, since nothing holds s
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...solvers.errors import InvalidProblem
from ...solvers.names import counted
from ...solvers.plans.blocks import layer_chains
from ...solvers.problem import Problem
from ..dataflow.dataflow import Dataflow
from ..index.profile_index import Index, Members
from ..replay_cost.effects import PlannedReplay, replay_of
from .menus import state_flow
from .runs import rows_of


def runs_of_layers(index: Index, problem: Problem, solver: str) -> Iterator[PlannedReplay]:
    """Recompute layers in the segments that a solver of fixed length, such as ``uniform:5``, makes of them."""
    length = counted(solver)[1] if solver.startswith("uniform:") else 1
    rows = rows_of(index) if length > 1 else []
    for chain in layer_chains(problem) if length > 1 else ():
        for first in range(0, len(chain.elements), length):
            last = min(first + length, len(chain.elements)) - 1
            parent = problem.calls[chain.elements[first]].parent
            if parent >= 0 and chain.siblings(first, last):  # a chain may be the model's own call alone
                row = rows[parent]
                start, stop = (row.index(chain.elements[place]) for place in (first, last))
                run = tuple(row[start : stop + 1])
                replay = None if index.reason(run) else replay_of(index, run)
                if replay is not None and replay.segment.freed_bytes:
                    yield replay


def whole_run(index: Index) -> Members:
    """Return the calls of the model's own code from the first that saves something to the last; empty if none does."""
    row = rows_of(index)[0]
    saving = [place for place, call in enumerate(row) if index.saves_of((call,))]
    return tuple(row[saving[0] : saving[-1] + 1]) if saving else ()


def running(index: Index, call: int, wanted: Collection[int], kept: Collection[int]) -> PlannedReplay | None:
    """Recompute some torch functions inside a call, and of the others what has to run for them.

    A function has to run if it makes what one of them reads, and backward does not hold that anyway. None where nothing
    is freed, or the functions inside the call cannot be told apart.
    """
    stated = state_flow(index, (call,))
    if stated is None:
        return None
    units, flow = stated
    place = {f: i for i, f in enumerate(units)}
    barred = {place[f] for f in kept if f in place}
    again, todo = set[int](), [place[f] for f in wanted if f in place]
    while todo:
        unit = todo.pop()
        if unit not in again:
            again.add(unit)
            todo += flow.groups[unit]
            missing = (t for t in flow.units[unit].reads if not (flow.items[t].saved or flow.items[t].free))
            todo += (maker for t in missing for maker in flow.makers[t] if maker not in barred)
    return _of_some_units(index, call, units, flow, again)


def sparing(index: Index, call: int, kept: Collection[int]) -> PlannedReplay | None:
    """Recompute a call but for some torch functions inside it. None where nothing is freed, or that cannot be done."""
    stated = state_flow(index, (call,))
    if stated is None:
        return None
    units, flow = stated
    place = {f: i for i, f in enumerate(units)}
    spared = {other for f in kept if f in place for other in flow.groups[place[f]]}
    return _of_some_units(index, call, units, flow, set(range(len(units))) - spared)


def _of_some_units(
    index: Index, call: int, units: Sequence[int], flow: Dataflow, again: Collection[int]
) -> PlannedReplay | None:
    """Price recomputing a call of which the units at these places run `again`, and no others.

    Return None where nothing is freed, or the others cannot be left alone.
    """
    try:
        flow.decisions(again)
    except InvalidProblem:  # what runs again would read what nothing makes
        return None
    idle = [f for i, f in enumerate(units) if i not in again]
    replay = replay_of(index, (call,), idle) if again else None
    return replay if replay is not None and replay.segment.freed_bytes else None
