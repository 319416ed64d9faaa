"""Makes the tables of a profile from a watched run."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..._data.step.tables import ArgumentRecord, CallRecord, FunctionTable, OpTable, RefusedPart, SaveTable, TensorTable
from ..watch.marks import Sources
from .attributes import at_attributes
from .copies import copies_of
from .flow import Flow, Span
from .lifetimes import Lifetimes
from .passes import kept_reads, later_passes, nested_passes, rereads
from .refusals import refused_parts
from .seconds import Place, Seconds
from .whole import unit_records


def make_tables(flow: Flow, found: Lifetimes, seconds: Seconds) -> dict[str, Any]:
    """Make the tables of a profile, by their names in it.

    Args:
        flow: the data flow of the run.
        found: its lifetimes.
        seconds: the seconds at which calls, saves, functions and operators began and ended.
    """
    at = _in_order(found, seconds.at)
    calls = _calls(flow, found, at)
    ops = [op for op, seen in enumerate(flow.run.ops) if seen.call >= 0 and not flow.is_view(op)]
    row_of = {op: row for row, op in enumerate(ops)}
    alike = _alike(flow, calls)
    timed = _function_seconds(flow, calls, alike, seconds.at)
    return {
        "calls": calls,
        "copies": copies_of(flow.run.calls, [span.first.storages for span in flow.calls]),
        "functions": _functions(flow, found, timed, calls),
        "ops": _ops(flow, ops, _op_seconds(flow, row_of, alike, timed, seconds.ops)),
        "tensors": TensorTable(
            bytes=tuple(found.bytes), birth=tuple(found.birth), natural=tuple(found.natural), death=tuple(found.death)
        ),
        "saves": _saves(flow, found, at, row_of),
        "backward_ticks": later_passes(found),
        "nested_ticks": nested_passes(found),
        "rereads": rereads(found),
        "kept_reads": kept_reads(found),
        "units": unit_records(flow.run, found),
        "refusals": (*refused_parts(flow), *_held(flow, found)),
    }


def _held(flow: Flow, found: Lifetimes) -> Iterator[RefusedPart]:
    """Name the tensors of the step that something other than the caller and autograd holds."""
    for each in found.of_kind("held"):
        yield from (RefusedPart("tensor", i, flow.run.holders[each.mark.index]) for i in each.storages if i >= 0)


def rounded(seconds: float) -> float:
    """Round to six digits. A clock is less precise, and digits make up most of a profile's file."""
    return float(f"{seconds:.6g}")


def _in_order(found: Lifetimes, at: Mapping[Place, float]) -> dict[Place, float]:
    """Return the seconds of calls and saves, raised where needed so that they never decrease.

    They come from several timed forwards, so they may be out of order.
    """
    last = 0.0
    ordered: dict[Place, float] = {}
    places = [(each.mark.kind, each.mark.index) for each in found.of_kind("enter", "exit", "pack", "forward_end")]
    left = Counter(places)  # the root has an exit for each forward: the seconds are put at the last one
    for place in places:
        left[place] -= 1
        if not left[place]:
            ordered[place] = last = max(at.get(place, last), last)
    return ordered


def _calls(flow: Flow, found: Lifetimes, at: Mapping[Place, float]) -> tuple[CallRecord, ...]:
    records, standing = [], at_attributes(flow, found)
    for index, (seen, span, signature) in enumerate(zip(flow.run.calls, flow.calls, flow.signatures(), strict=True)):
        ops = flow.ops_in(span)
        # Also what changes after the call: hooks and other calls of the module write while its replay is to come.
        until_backward = range(ops.start, len(flow.ops))
        written = flow.buffers & flow.writes_of.keys()
        changed = [storage for storage in written if flow.written([storage], until_backward)]
        records.append(
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
                arguments=_arguments(flow, span, seen.ways),
                outputs=tuple(filter(flow.is_activation, span.last.storages)),
                signature=signature,
                draws=seen.draws or any(flow.run.ops[op].draws for op in ops),
                buffers=tuple(sorted({*flow.buffer_names(changed, seen.name), *seen.bound})),
                attributes=standing[index].needed or msgspec.UNSET,
                unread=standing[index].unread or msgspec.UNSET,
            )
        )
    return tuple(records)


def _arguments(flow: Flow, span: Span, ways: Sequence[Sequence[Sources]]) -> tuple[ArgumentRecord, ...]:
    later = range(flow.ops_in(span).start, len(flow.ops))
    return tuple(
        ArgumentRecord(max(storage, -1), way.calls, flow.written([storage], later), way.functions, way.graph)
        for storage, each in zip(span.first.storages, ways, strict=True)
        if not flow.is_own(storage)
        for way in each
    )


def medians(values: Iterable[float], groups: Sequence[Hashable]) -> list[float]:
    """Return for each value the median of its group."""
    found: dict[Hashable, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        found[group].append(value)
    medians = {group: statistics.median(own) for group, own in found.items()}
    return [medians[group] for group in groups]


def _alike(flow: Flow, calls: Sequence[CallRecord]) -> list[tuple[object, ...]]:
    """Return a key for each function; functions at the same position in calls of equal signature share it."""
    position: Counter[int] = Counter()
    found: list[tuple[object, ...]] = []
    for seen in flow.run.functions:
        found.append((calls[seen.call].signature, position[seen.call], seen.name))
        position[seen.call] += 1
    return found


def _function_seconds(
    flow: Flow, calls: Sequence[CallRecord], alike: Sequence[Hashable], at: Mapping[Place, float]
) -> list[float]:
    """Return each function's seconds: the median over equal functions, scaled down if a call's sum exceeds the call."""
    seen = flow.run.functions
    own = (max(at.get(("end", i), 0.0) - at.get(("begin", i), 0.0), 0.0) for i in range(len(seen)))
    seconds = medians(own, alike)
    limits = medians([call.forward_seconds for call in calls], [call.signature for call in calls])
    totals = [0.0] * len(calls)
    for each, taken in zip(seen, seconds, strict=True):
        totals[each.call] += taken
    shares = [min(1.0, limit / total) if total else 1.0 for limit, total in zip(limits, totals, strict=True)]
    return [taken * shares[each.call] for each, taken in zip(seen, seconds, strict=True)]


def _functions(flow: Flow, found: Lifetimes, seconds: Sequence[float], calls: Sequence[CallRecord]) -> FunctionTable:
    seen, spans = flow.run.functions, flow.functions
    alone = all(call.parent == i - 1 for i, call in enumerate(calls))  # a chain of nested calls, without siblings
    reads, made = _reads_of_functions(flow), _made_by_functions(flow, found)
    return FunctionTable(
        call=tuple(each.call for each in seen),
        name=tuple(each.name for each in seen),
        occurrence=tuple(each.occurrence for each in seen),
        enter=tuple(span.first.tick for span in spans),
        exit=tuple(span.last.tick for span in spans),
        seconds=tuple(map(rounded, seconds)),
        reads=tuple(map(tuple, reads)),
        makes=made,
        alias=tuple(map(flow.aliases, spans)),
        mutates=tuple(flow.mutates(function) for function in range(len(seen))),
        draws=tuple(each.draws or flow.draws_fakes(function) for function, each in enumerate(seen)),
        arguments=tuple(
            _arguments(flow, span, each.ways) if alone or calls[each.call].stop > each.call + 1 else ()
            for each, span in zip(seen, spans, strict=True)
        ),
    )


def _reads_of_functions(flow: Flow) -> list[dict[int, None]]:
    """Return the activations that each function reads, in order."""
    hollow = [flow.looks_at_shapes(function) for function in range(len(flow.functions))]
    reads: list[dict[int, None]] = []
    for looks, span in zip(hollow, flow.functions, strict=True):
        came = [] if looks else filter(flow.is_activation, span.first.storages)
        reads.append(dict.fromkeys(each for each in came if each not in flow.casts))
    for op, each in enumerate(flow.run.ops):
        # A function may also read what is not among its arguments: an attribute, a closure.
        if each.function >= 0 and not hollow[each.function] and not flow.is_view(op):
            begin = flow.functions[each.function].first.tick
            reads[each.function].update(dict.fromkeys(t for t in flow.reads(op) if flow.birth_of(t) < begin))
    return reads


def _made_by_functions(flow: Flow, found: Lifetimes) -> tuple[tuple[int, ...], ...]:
    """Return the tensors that each function allocates and then returns or saves."""
    made = [[*span.last.storages] for span in flow.functions]
    for save, pack in zip(flow.run.saves, found.of_kind("pack"), strict=True):
        if save.function >= 0:
            made[save.function] += pack.storages
    return tuple(
        tuple(sorted({t for t in own if flow.birth_of(t) > span.first.tick}))
        for span, own in zip(flow.functions, made, strict=True)
    )


def _ops(flow: Flow, ops: Sequence[int], seconds: Sequence[float]) -> OpTable:
    seen = [flow.run.ops[op] for op in ops]
    return OpTable(
        function=tuple(each.function for each in seen),
        call=tuple(each.call for each in seen),
        name=tuple(each.name for each in seen),
        start=tuple(flow.ops[op].first.tick for op in ops),
        stop=tuple(flow.ops[op].last.tick for op in ops),
        seconds=tuple(rounded(seconds[op]) for op in ops),
        reads=tuple(tuple(flow.reads(op)) for op in ops),
        makes=tuple(tuple(flow.makes(op)) for op in ops),
        writes=tuple(tuple(each for each in flow.changed(op) if each >= 0) for op in ops),
    )


def _op_seconds(
    flow: Flow, ops: Container[int], alike: Sequence[Hashable], timed: Sequence[float], seconds: Sequence[float]
) -> list[float]:
    """Split each function's seconds among its operators, by the medians of their own seconds over equal functions."""
    found = [*seconds]  # an operator outside all functions keeps its own seconds
    ops_of = {f: [op for op in own if op in ops] for f, own in flow.ops_of.items() if f >= 0}
    places: dict[int, Hashable] = {}
    for function, own in ops_of.items():
        key = alike[function], *(flow.run.ops[op].name for op in own)
        places.update((op, (key, place)) for place, op in enumerate(own))
    shares = dict(zip(places, medians((seconds[op] for op in places), [*places.values()]), strict=True))
    for function, own in ops_of.items():
        total = sum(shares[op] for op in own)
        for op in own:
            found[op] = timed[function] * (shares[op] / total if total > 0 else 1 / len(own))
    return found


def _saves(flow: Flow, found: Lifetimes, at: Mapping[Place, float], row_of: Mapping[int, int]) -> SaveTable:
    saves, ticks = flow.run.saves, found.ticks
    unpack, release = [ticks] * len(saves), [ticks] * len(saves)
    for each in found.of_kind("unpack", "release"):
        if each.mark.kind == "unpack":
            unpack[each.mark.index] = min(unpack[each.mark.index], each.tick)
        else:
            release[each.mark.index] = each.tick + 1  # alive up to and including its marker
    packs = list(found.of_kind("pack"))
    ops_of: dict[int, list[int]] = defaultdict(list)
    first_of: dict[tuple[int, int], int] = {}  # operator, by function and autograd node
    for op in row_of:
        seen = flow.run.ops[op]
        ops_of[seen.function].append(op)
        first_of.setdefault((seen.function, seen.node), op)
    makers = []
    for save in saves:
        # An autograd node is made, saves its inputs, runs its operator, and saves its outputs, in this order.
        own = ops_of[save.function] if save.function >= 0 else []
        before = bisect_left(own, save.ops)
        op = first_of.get((save.function, save.node), own[before - 1] if before else -1) if own else -1
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
