"""From a watched run to the tables of a profile."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .._data.tables import Argument, CallRecord, FunctionTable, OpTable, RefusedPart, SaveTable, TensorTable
from .flow import Flow, Span
from .judged import JudgedCall, JudgedFunction, judge_calls, judge_functions
from .lifetimes import Lifetimes
from .marks import Given
from .timing import Place, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of a profile; see `autockpt._data.tables`."""

    calls: tuple[CallRecord, ...]
    functions: FunctionTable
    ops: OpTable
    tensors: TensorTable
    saves: SaveTable
    refusals: tuple[RefusedPart, ...]


@dataclass(slots=True)
class _Row:
    """A function on its way into the table."""

    span: Span
    seconds: float
    group: tuple[object, ...]
    packed: list[int] = field(default_factory=list)


def make_tables(flow: Flow, found: Lifetimes, seconds: Seconds) -> Tables:
    """Make the tables of a profile.

    Args:
        flow: the data flow of the run.
        found: its lifetimes.
        seconds: when what happened.
    """
    at = _in_order(found, seconds.at)
    judged_calls, judged = judge_calls(flow), judge_functions(flow)
    calls = _calls(flow, judged_calls, at)
    rows = _function_rows(flow, calls, seconds.at)
    row_of: dict[int, int] = {}
    for op, seen in enumerate(flow.run.ops):
        if seen.call >= 0 and not flow.is_view(op):
            row_of[op] = len(row_of)
    for save, pack in zip(flow.run.saves, found.of_kind("pack"), strict=True):
        if save.function >= 0:
            rows[save.function].packed += pack.storages
    return Tables(
        calls=calls,
        functions=_functions(flow, rows, judged, calls),
        ops=_ops(flow, row_of, rows, seconds.ops),
        tensors=TensorTable(
            bytes=tuple(found.bytes), birth=tuple(found.birth), natural=tuple(found.natural), death=tuple(found.death)
        ),
        saves=_saves(flow, found, at, row_of),
        refusals=(
            *(RefusedPart("call", i, each.refused) for i, each in enumerate(judged_calls) if each.refused),
            *(RefusedPart("result", i, each.refused) for i, each in enumerate(judged) if each.refused),
            *(RefusedPart("function", i, each.unrepeatable) for i, each in enumerate(judged) if each.unrepeatable),
        ),
    )


def rounded(seconds: float) -> float:
    """Round to six digits, more than a clock can tell: a profile's file is mostly digits."""
    return float(f"{seconds:.6g}")


def _in_order(found: Lifetimes, at: Mapping[Place, float]) -> dict[Place, float]:
    """Seconds of calls and saves that never go back: they were timed in several forwards."""
    last = 0.0
    ordered: dict[Place, float] = {}
    for each in found.of_kind("enter", "exit", "pack", "forward_end"):
        place = each.mark.kind, each.mark.index
        ordered[place] = last = max(at.get(place, last), last)
    return ordered


def _calls(flow: Flow, judged: Sequence[JudgedCall], at: Mapping[Place, float]) -> tuple[CallRecord, ...]:
    return tuple(
        CallRecord(
            name=seen.name,
            occurrence=seen.occurrence,
            parent=seen.parent,
            stop=seen.stop,
            class_name=seen.class_name,
            enter=span.first.tick,
            exit=span.last.tick,
            enter_seconds=at["enter", index],
            exit_seconds=at["exit", index],
            arguments=_arguments(flow, span, seen.given, judge.mutated),
            outputs=tuple(each for each in span.last.storages if each >= 0),
            signature=signature,
            draws=judge.draws,
            buffers=judge.buffers,
            leaves_traces=judge.leaves_traces,
        )
        for index, (seen, span, judge, signature) in enumerate(
            zip(flow.run.calls, flow.calls, judged, flow.signatures(), strict=True)
        )
    )


def _arguments(flow: Flow, span: Span, given: Given, mutated: Sequence[int]) -> tuple[Argument, ...]:
    sources = [
        each for storage, each in zip(span.first.storages, given.sources, strict=True) if not flow.is_own(storage)
    ]
    return tuple(
        Argument(max(storage, -1), each.calls, position in mutated, each.functions, each.mixed)
        for position, (storage, each) in enumerate(zip(flow.given(span), sources, strict=True))
    )


def _function_rows(flow: Flow, calls: Sequence[CallRecord], at: Mapping[Place, float]) -> list[_Row]:
    """Functions with their seconds: equal functions of equal calls take the median, and no longer than their call."""
    position: dict[int, int] = defaultdict(int)
    groups: dict[tuple[object, ...], list[_Row]] = defaultdict(list)
    rows: list[_Row] = []
    inside: dict[int, list[_Row]] = defaultdict(list)
    for number, (seen, span) in enumerate(zip(flow.run.functions, flow.functions, strict=True)):
        group = (calls[seen.call].signature, position[seen.call], seen.name)
        position[seen.call] += 1
        rows.append(_Row(span, max(at.get(("end", number), 0.0) - at.get(("begin", number), 0.0), 0.0), group))
        groups[group].append(rows[-1])
        inside[seen.call].append(rows[-1])
    for alike in groups.values():
        median = statistics.median(row.seconds for row in alike)
        for row in alike:
            row.seconds = median
    by_signature: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        by_signature[call.signature].append(call.forward_seconds)
    for index, own in inside.items():
        limit = statistics.median(by_signature[calls[index].signature])
        total = sum(row.seconds for row in own)
        for row in own:
            row.seconds *= min(1.0, limit / total) if total else 1.0
    return rows


def _functions(
    flow: Flow, rows: list[_Row], judged: Sequence[JudgedFunction], calls: Sequence[CallRecord]
) -> FunctionTable:
    seen = flow.run.functions
    alone = all(call.parent == i - 1 for i, call in enumerate(calls))  # each hands all over to the next
    reads: list[dict[int, None]] = []
    for judge, row in zip(judged, rows, strict=True):
        came = [] if judge.shapes_only else [each for each in flow.given(row.span) if each >= 0]
        reads.append(dict.fromkeys(each for each in came if each not in flow.casts))
    for op, each in enumerate(flow.run.ops):
        # A function may get at what it was not given: an attribute, a closure.
        if each.function >= 0 and not judged[each.function].shapes_only and not flow.is_view(op):
            begin = rows[each.function].span.first.tick
            reads[each.function].update(dict.fromkeys(t for t in flow.reads(op) if flow.born(t) < begin))
    return FunctionTable(
        call=tuple(each.call for each in seen),
        name=tuple(each.name for each in seen),
        occurrence=tuple(each.occurrence for each in seen),
        enter=tuple(row.span.first.tick for row in rows),
        exit=tuple(row.span.last.tick for row in rows),
        seconds=tuple(rounded(row.seconds) for row in rows),
        reads=tuple(map(tuple, reads)),
        makes=tuple(
            tuple(sorted({t for t in (*row.span.last.storages, *row.packed) if flow.born(t) > row.span.first.tick}))
            for row in rows
        ),
        alias=tuple(each.alias for each in judged),
        mutates=tuple(each.mutates for each in judged),
        draws=tuple(each.draws for each in judged),
        arguments=tuple(
            _arguments(flow, row.span, one.given, judge.mutated) if alone or calls[one.call].stop > one.call + 1 else ()
            for one, row, judge in zip(seen, rows, judged, strict=True)
        ),
    )


def _ops(flow: Flow, row_of: Mapping[int, int], rows: Sequence[_Row], seconds: Sequence[float]) -> OpTable:
    seen = [flow.run.ops[op] for op in row_of]
    shared = _shared_seconds(flow, row_of, rows, seconds)
    reads = [flow.reads(op) for op in row_of]
    made = [flow.makes(op) for op in row_of]
    written = [[flow.ops[op].first.storages[position] for position in flow.run.ops[op].written] for op in row_of]
    return OpTable(
        function=tuple(each.function for each in seen),
        call=tuple(each.call for each in seen),
        name=tuple(each.name for each in seen),
        start=tuple(flow.ops[op].first.tick for op in row_of),
        stop=tuple(flow.ops[op].last.tick for op in row_of),
        seconds=tuple(rounded(shared[op]) for op in row_of),
        reads=tuple(map(tuple, reads)),
        makes=tuple(map(tuple, made)),
        writes=tuple(tuple(each for each in own if each >= 0) for own in written),
    )


def _shared_seconds(
    flow: Flow, row_of: Mapping[int, int], rows: Sequence[_Row], seconds: Sequence[float]
) -> dict[int, float]:
    """Split each function's seconds as those of its operators say, medians over equal functions."""
    shared = {op: seconds[op] for op in row_of}
    ops_of: dict[int, list[int]] = defaultdict(list)
    for op in row_of:
        if flow.run.ops[op].function >= 0:  # what no function ran was timed nowhere else
            ops_of[flow.run.ops[op].function].append(op)
    keys = {f: (rows[f].group, *(flow.run.ops[op].name for op in own)) for f, own in ops_of.items()}
    groups: dict[tuple[object, ...], list[list[float]]] = defaultdict(list)
    for f, own in ops_of.items():
        groups[keys[f]].append([seconds[op] for op in own])
    shares = {key: [statistics.median(column) for column in zip(*group, strict=True)] for key, group in groups.items()}
    for f, own in ops_of.items():
        share = shares[keys[f]]
        total = sum(share)
        for op, part in zip(own, share, strict=True):
            shared[op] = rows[f].seconds * (part / total if total > 0 else 1 / len(own))
    return shared


def _saves(flow: Flow, found: Lifetimes, at: Mapping[Place, float], row_of: Mapping[int, int]) -> SaveTable:
    saves, ticks = flow.run.saves, found.ticks
    unpack, release = [ticks] * len(saves), [ticks] * len(saves)
    for each in found.of_kind("unpack", "release"):
        if each.mark.kind == "unpack":
            unpack[each.mark.index] = min(unpack[each.mark.index], each.tick)
        else:
            release[each.mark.index] = each.tick + 1  # alive up to and including its marker
    packs = list(found.of_kind("pack"))
    rows = list(row_of)
    by_function: dict[int, list[int]] = defaultdict(list)
    for op in rows:
        by_function[flow.run.ops[op].function].append(op)
    makers = []
    for save in saves:
        # An autograd node is made, saves inputs, runs its operator, and saves outputs.
        own = by_function[save.function] if save.function >= 0 else []
        same_node = [op for op in own if flow.run.ops[op].node == save.node]
        before = bisect_left(own, save.ops)
        op = same_node[0] if same_node else own[before - 1] if before else -1
        makers.append(row_of.get(op, -1))
    return SaveTable(
        tensor=tuple(max(each.storages[0], -1) if each.storages else -1 for each in packs),
        call=tuple(each.call for each in saves),
        pack=tuple(each.tick for each in packs),
        unpack=tuple(unpack),
        release=tuple(release),
        seconds=tuple(at["pack", number] for number in range(len(saves))),
        function=tuple(each.function for each in saves),
        op=tuple(makers),
    )
