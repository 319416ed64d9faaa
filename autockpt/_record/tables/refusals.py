"""Why calls and functions cannot be replayed: the reasons that profiles hold and `explain` shows."""

from __future__ import annotations

from collections.abc import Iterator

from ..._data.step.tables import RefusedPart
from ..._ranks.refuse import COLLECTIVES
from ..watch.checks import CHANGES_PARAMETER, DRAWS, DRAWS_ELSEWHERE
from ..watch.marks import SeenCall
from .flow import Flow

RRELU = ("aten.rrelu_with_noise.", "aten.rrelu_with_noise_.")
"""Prefixes of the names of the operators that write their noise tensor after autograd has saved it."""

LATE_WRITE = "draws the noise of an RReLU after autograd has saved its tensor, and a replay stops at the last save"

WRITTEN_LATE = "saves a tensor that is written to after that, through .data or numpy, and a replay may end before that"

UNTRACED = "returns an empty or sparse tensor, and recording cannot see what reads it"
"""In another step the tensor may have elements: an expert that has no tokens in the recorded step may get some."""

CAPTURED = "reads a tensor that is no argument, parameter or buffer (closure or attribute)"

RUNS_TOGETHER = "runs a collective, which other ranks wait for"

CHANGES_GIVEN_BUFFER = "changes a buffer that it is given, which a replay would do again"

GIVEN_BUFFER_MOVES = "is given a buffer that is changed in place later"

OUTSIDE = "nothing outside it would hold a boundary"
IS_A_LATER_FORWARD = f"is a later forward of the model itself, called by the loop in the same step: {OUTSIDE}"
IS_THE_ROOT = f"is the model itself, called inside its own forward: {OUTSIDE}"
IS_A_ROOT = f"is one of the models, called by the loop: {OUTSIDE}"


def refused_parts(flow: Flow) -> Iterator[RefusedPart]:
    """Yield what cannot be replayed, each with its first reason: calls, runs, units, results and functions."""
    captured, functions = flow.captured(), range(len(flow.functions))
    late = flow.written_late()
    calls = (next(filter(None, _of_call(flow, call, captured, late)), "") for call in range(len(flow.calls)))
    together = {op.function for op in flow.run.ops if op.name.startswith(COLLECTIVES)}
    results = (
        seen.unreadable or (UNTRACED if seen.untraced else "") or (RUNS_TOGETHER if i in together else "")
        for i, seen in enumerate(flow.run.functions)
    )
    alone = (next(filter(None, _of_function(flow, function)), "") for function in functions)
    yield from (RefusedPart("call", i, reason) for i, reason in enumerate(calls) if reason)
    yield from (RefusedPart("run", i, seen.alone) for i, seen in enumerate(flow.run.calls) if seen.alone)
    yield from (RefusedPart("unit", i, seen.traces) for i, seen in enumerate(flow.run.calls) if seen.traces)
    yield from (RefusedPart("result", i, reason) for i, reason in enumerate(results) if reason)
    yield from (RefusedPart("function", i, reason) for i, reason in enumerate(alone) if reason)


def _of_op(flow: Flow, op: int) -> str:
    if flow.run.ops[op].name.startswith(RRELU):
        return LATE_WRITE
    return CHANGES_PARAMETER if not flow.parameters.isdisjoint(flow.changed(op)) else ""


def _of_call(flow: Flow, call: int, captured: set[int], late: set[int]) -> Iterator[str]:
    seen, span = flow.run.calls[call], flow.calls[call]
    ops = flow.ops_in(span)
    others = {
        each for each in flow.buffers.intersection(span.first.storages) if not flow.buffer_names([each], seen.name)
    }
    yield from (reason for reason in seen.reasons if reason.startswith(DRAWS))
    yield CAPTURED if call in captured else ""  # a tensor made on a device without tape looks like this too
    yield _as_a_root(seen) if call and seen.name in flow.run.roots else ""
    yield from (_of_op(flow, op) for op in ops)
    yield from seen.reasons
    yield WRITTEN_LATE if call in late else ""
    yield CHANGES_GIVEN_BUFFER if flow.written(others, ops) else ""
    yield GIVEN_BUFFER_MOVES if flow.written(others, range(ops.stop, len(flow.ops))) else ""


def _as_a_root(seen: SeenCall) -> str:
    """Say why a further call of the model, or a call of one of several, is not replayed."""
    return IS_A_ROOT if seen.name else IS_A_LATER_FORWARD if seen.of_loop else IS_THE_ROOT


def _of_function(flow: Flow, function: int) -> Iterator[str]:
    seen, span, ops = flow.run.functions[function], flow.functions[function], flow.ops_of[function]
    yield from (_of_op(flow, op) for op in ops)
    yield seen.unrepeatable
    yield WRITTEN_LATE if any(flow.run.saves[save].function == function for save in flow.run.written_late) else ""
    yield DRAWS_ELSEWHERE.format("unknown") if flow.draws_fakes(function) and not span.first.storages else ""
    yield seen.unreadable
    yield RUNS_TOGETHER if any(flow.run.ops[op].name.startswith(COLLECTIVES) for op in ops) else ""
    yield "" if span.last.storages else "returns no tensor"
    yield "changes a buffer" if any(not flow.buffers.isdisjoint(flow.changed(op)) for op in ops) else ""
    given = flow.buffers.intersection(span.first.storages)
    yield GIVEN_BUFFER_MOVES if given and flow.written(given, range(max(ops) + 1 if ops else 0, len(flow.ops))) else ""
