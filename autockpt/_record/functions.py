"""The torch functions of the recorded step: ticks, tensors, seconds, and who saved what."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .._data.tables import Argument, CallRecord, FunctionTable
from .assemble import Lifetimes, WatchedRun, rounded
from .dataflow import SeenFunction
from .structure import Structure
from .watch import Sources

PLACES = ("enter", "exit", "begin", "end", "pack")
"""Kinds of markers that the structural forward passes too."""

UNSEEN = "the model called other functions when its forward ran a second time, so what each does is not known"


@dataclass(slots=True)
class StepFunction:
    """A function of the recorded step.

    Attributes:
        name: its short name.
        occurrence: which one of that name in its call's own code.
        call: index of that call.
        enter: tick at which it began.
        exit: tick at which it ended.
        given: tensors that came in.
        sources: for each storage that came in, the tensor, -1 for an older one, and who returned it.
        makes: tensors born in it that went out or were saved in it.
        packs: numbers of the saves made in it.
        seconds: its forward seconds.
        group: equal for the same function of equal calls.
    """

    name: str
    occurrence: int
    call: int
    enter: int = 0
    exit: int = 0
    given: tuple[int, ...] = ()
    sources: tuple[tuple[int, Sources], ...] = ()
    makes: tuple[int, ...] = ()
    packs: list[int] = field(default_factory=list)
    seconds: float = 0.0
    group: tuple[object, ...] = ()


def agrees(run: WatchedRun, structure: Structure) -> bool:
    """Whether the structural forward made the calls, functions and saves of the recorded step, in the same order."""
    flow = structure.flow
    return (
        [call.name for call in structure.calls] == [call.name for call in run.calls]
        and [function.name for function in flow.functions] == [function.name for function in run.functions]
        and [(each.kind, each.index) for each in flow.happenings]
        == [(mark.kind, mark.index) for mark in run.marks if mark.kind in PLACES]
    )


def step_functions(
    run: WatchedRun, found: Lifetimes, seconds: list[float], calls: Sequence[CallRecord]
) -> tuple[list[StepFunction], list[int]]:
    """Gather what the markers say of each function.

    Args:
        run: the recorded step.
        found: its lifetimes.
        seconds: of each function.
        calls: the calls.

    Returns:
        The functions, and for each save the function that made it, or -1.
    """
    functions = [StepFunction(each.name, each.occurrence, each.call) for each in run.functions]
    savers: list[int] = []
    open_functions: list[int] = []
    for i, mark in enumerate(run.marks):
        tick, tensors = found.mark_ticks[i], found.mark_tensors[i]
        if mark.kind == "begin":
            function = functions[mark.index]
            function.enter, function.given, function.seconds = tick, _known(tensors), seconds[mark.index]
            function.sources = tuple(zip(tensors, mark.sources, strict=True))
            open_functions.append(mark.index)
        elif mark.kind == "end":
            function = functions[open_functions.pop()]
            function.exit = tick
            function.makes = _born_since(function.enter, (*tensors, *function.makes), found)
        elif mark.kind == "pack":
            savers.append(open_functions[-1] if open_functions else -1)
            if open_functions:
                function = functions[open_functions[-1]]
                function.packs.append(len(savers) - 1)
                function.makes += tensors
    _equal_seconds(functions, calls)
    _fit_into_calls(functions, calls)
    return functions, savers


def function_seconds(run: WatchedRun, seconds: Mapping[int, float]) -> list[float]:
    """Seconds of each function, from those of markers, by number of the marker."""
    found = [0.0] * len(run.functions)
    for i, mark in enumerate(run.marks):
        if mark.kind == "begin":
            found[mark.index] -= seconds[i]
        elif mark.kind == "end":
            found[mark.index] = max(found[mark.index] + seconds[i], 0.0)
    return found


def _known(tensors: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(tensor for tensor in tensors if tensor >= 0))


def _born_since(tick: int, tensors: tuple[int, ...], found: Lifetimes) -> tuple[int, ...]:
    return tuple(sorted(tensor for tensor in _known(tensors) if found.birth[tensor] > tick))


def _equal_seconds(functions: list[StepFunction], calls: Sequence[CallRecord]) -> None:
    """Give the same functions of equal calls the median of their seconds."""
    position: dict[int, int] = defaultdict(int)
    groups: dict[tuple[object, ...], list[StepFunction]] = defaultdict(list)
    for function in functions:
        function.group = (calls[function.call].signature or function.call, position[function.call], function.name)
        position[function.call] += 1
        groups[function.group].append(function)
    for group in groups.values():
        median = statistics.median(function.seconds for function in group)
        for function in group:
            function.seconds = median


def _fit_into_calls(functions: list[StepFunction], calls: Sequence[CallRecord]) -> None:
    """Let the functions of a call take no longer than the call, median over equal calls, though timed apart."""
    by_signature: dict[str | int, list[float]] = defaultdict(list)
    for number, call in enumerate(calls):
        by_signature[call.signature or number].append(call.forward_seconds)
    own: dict[int, list[StepFunction]] = defaultdict(list)
    for function in functions:
        own[function.call].append(function)
    for number, inside in own.items():
        limit = statistics.median(by_signature[calls[number].signature or number])
        total = sum(function.seconds for function in inside)
        for function in inside:
            function.seconds *= min(1.0, limit / total) if total else 1.0


def function_table(
    calls: Sequence[CallRecord],
    functions: list[StepFunction],
    reads: list[tuple[int, ...]],
    seen: list[SeenFunction] | None,
) -> FunctionTable:
    """Make the table.

    Args:
        calls: the calls.
        functions: the functions.
        reads: what each read.
        seen: what the structural forward saw of each, if it saw the same ones.
    """
    nothing = SeenFunction("", 0, frozenset(), refused=UNSEEN, unrepeatable=UNSEEN)
    flags = seen if seen is not None else [nothing] * len(functions)
    alone = all(call.parent == i - 1 for i, call in enumerate(calls))  # each hands all over to the next
    return FunctionTable(
        call=tuple(each.call for each in functions),
        name=tuple(each.name for each in functions),
        occurrence=tuple(each.occurrence for each in functions),
        enter=tuple(each.enter for each in functions),
        exit=tuple(each.exit for each in functions),
        seconds=tuple(rounded(each.seconds) for each in functions),
        reads=tuple(reads),
        makes=tuple(each.makes for each in functions),
        alias=tuple(each.alias for each in flags),
        mutates=tuple(each.mutates for each in flags),
        draws=tuple(each.draws for each in flags),
        refused=tuple(each.refused for each in flags),
        arguments=tuple(
            _arguments(each, saw) if alone or calls[each.call].stop > each.call + 1 else ()
            for each, saw in zip(functions, flags, strict=True)
        ),
        unrepeatable=tuple(each.unrepeatable for each in flags),
    )


def _arguments(function: StepFunction, seen: SeenFunction) -> tuple[Argument, ...]:
    return tuple(
        Argument(tensor, sources.calls, position in seen.mutated, sources.functions, sources.mixed)
        for position, (tensor, sources) in enumerate(function.sources)
    )
