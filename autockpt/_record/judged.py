"""Why calls and functions cannot be replayed, and what a replay of them must know: judged when the run is over."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from . import refusals
from .flow import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCall:
    """What one call does, and why it cannot be replayed exactly; see `autockpt._data.tables.CallRecord`."""

    draws: bool
    buffers: tuple[str, ...]
    mutated: tuple[int, ...]
    refused: str
    leaves_traces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedFunction:
    """What one torch function does; see `autockpt._data.tables.FunctionTable`."""

    alias: bool
    mutates: bool
    draws: bool
    shapes_only: bool
    mutated: tuple[int, ...]
    refused: str
    unrepeatable: str


def judge_calls(flow: Flow) -> list[JudgedCall]:
    """Judge every call of a run."""
    captured = flow.captured()
    last = len(flow.ops)
    found = []
    for index, (seen, span) in enumerate(zip(flow.run.calls, flow.calls, strict=True)):
        ops, given = flow.ops_in(span), flow.given(span)
        changed = {write.storage for write in flow.writes_in(ops)} & flow.buffers
        others = set(span.first.storages) & flow.buffers
        others = {each for each in others if not flow.buffer_names([each], seen.name)}
        reasons = [
            refusals.WRITTEN_UNSEEN if flow.written_unseen(span, seen.given) else "",
            refusals.CAPTURED if index in captured else "",
            refusals.IS_THE_ROOT if index and not seen.name else "",
            *(flow.op_reason(op) for op in ops),
            *seen.reasons,
            refusals.CHANGES_GIVEN_BUFFER if flow.written(others, ops) else "",
            refusals.GIVEN_BUFFER_MOVES if flow.written(others, range(ops.stop, last)) else "",
        ]
        found.append(
            JudgedCall(
                draws=seen.draws or any(flow.run.ops[op].draws for op in ops),
                buffers=tuple(sorted({*flow.buffer_names(changed, seen.name), *seen.bound})),
                mutated=tuple(flow.mutated(span)),
                refused=next(filter(None, reasons), ""),
                leaves_traces=seen.refilled
                or bool(seen.bound)
                or flow.written(given, ops)
                or any(flow.buffer_names([each], seen.name) and not flow.used_only_by(span, each) for each in changed),
            )
        )
    return found


def judge_functions(flow: Flow) -> list[JudgedFunction]:
    """Judge every torch function of a run."""
    ops_of: dict[int, list[int]] = defaultdict(list)
    for op, seen_op in enumerate(flow.run.ops):
        ops_of[seen_op.function].append(op)
    found = []
    for index, (seen, span) in enumerate(zip(flow.run.functions, flow.functions, strict=True)):
        begin, ops, out = span.first.tick, ops_of[index], set(span.last.storages)
        writes = [each for each in flow.writes_in(flow.ops_in(span)) if flow.run.ops[each.op].function == index]
        alias = not out.isdisjoint(span.first.storages)
        buffers = [write for write in writes if write.storage in flow.buffers]
        fake_draws = any(flow.run.ops[op].draws for op in ops)
        refused = seen.unreadable or (refusals.UNTRACED if seen.untraced else "")
        reasons = [
            next(filter(None, map(flow.op_reason, ops)), ""),
            refusals.WRITTEN_UNSEEN if flow.written_unseen(span, seen.given) else "",
            seen.unrepeatable,
            refusals.DRAWS_ELSEWHERE.format("unknown") if fake_draws and not span.first.storages else "",
            seen.unreadable,
            "" if out else "returns no tensor",
            "changes a buffer" if buffers else "",
        ]
        found.append(
            JudgedFunction(
                alias=alias,
                mutates=any(flow.born(w.storage) < begin for w in writes if w.storage not in flow.buffers)
                or any(not flow.used_only_by(span, w.storage) or (w.counted and not alias) for w in buffers),
                draws=seen.draws or fake_draws,
                shapes_only=not ops and not out and seen.name != "tolist" and seen.plain,
                mutated=tuple(flow.mutated(span)),
                refused=refused,
                unrepeatable=next(filter(None, reasons), ""),
            )
        )
    return found
