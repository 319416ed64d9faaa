"""From tapes to tables: ticks, lifetimes, saves and calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from .._data.tables import Argument, CallRecord, SaveTable, TensorTable
from .structure import CallStructure
from .tape import Event
from .watch import Clock, Mark, OpenedCall, OpenedFunction


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """What one watched run left.

    Attributes:
        events: the tape.
        marks: the markers, by their number on the tape.
        calls: the calls that were opened, in pre-order.
        functions: the torch functions that they called, in order.
        reached: which of the step's leaves get a gradient.
    """

    events: list[Event]
    marks: list[Mark]
    calls: list[OpenedCall]
    functions: list[OpenedFunction]
    reached: frozenset[int]


@dataclass(slots=True)
class Lifetimes:
    """Every storage born in a run and every marker, on the clock of ticks.

    Attributes:
        bytes: size of each storage.
        birth: tick of its allocation.
        death: tick from which it was gone; `ticks` if the run ended first.
        mark_ticks: tick of each marker.
        mark_tensors: for each marker, the tensors its keys stood for at that tick, -1 for an older one.
        ticks: length of the clock.
    """

    bytes: list[int] = field(default_factory=list)
    birth: list[int] = field(default_factory=list)
    death: list[int] = field(default_factory=list)
    mark_ticks: list[int] = field(default_factory=list)
    mark_tensors: list[tuple[int, ...]] = field(default_factory=list)
    ticks: int = 0

    def first(self, run: WatchedRun, kind: str) -> int:
        """Tick of the first marker of a kind."""
        return next(tick for tick, mark in zip(self.mark_ticks, run.marks, strict=True) if mark.kind == kind)


def lifetimes(run: WatchedRun) -> Lifetimes:
    """Put a run's events on the clock of ticks: allocations and markers count, frees fall between them."""
    found, live, deaths = Lifetimes(), dict[int, int](), dict[int, int]()
    for event in run.events:
        if event.kind == "free":
            if (tensor := live.pop(event.key, None)) is not None:  # None: it is older than the step
                deaths[tensor] = found.ticks
            continue
        if event.kind == "alloc":
            live[event.key] = len(found.bytes)
            found.bytes.append(event.bytes)
            found.birth.append(found.ticks)
        else:
            mark = run.marks[event.key]
            tensors = tuple(live.get(key, -1) for key in mark.keys)
            found.mark_ticks.append(found.ticks)
            found.mark_tensors.append(tensors)
            if mark.kind == "ready" and tensors[0] >= 0:
                # This gradient is added to one that existed before the step, and is gone at once.
                deaths[live.pop(mark.keys[0])] = found.ticks + 1
        found.ticks += 1
    found.death = [deaths.get(tensor, found.ticks) for tensor in range(len(found.bytes))]
    return found


def natural_deaths(run: WatchedRun, kept: Lifetimes, dropped_run: WatchedRun, dropped: Lifetimes) -> list[int] | None:
    """Return the tick from which only saves keep each tensor alive, or None if the two runs differ.

    Args:
        run: the real step.
        kept: its lifetimes.
        dropped_run: a forward whose saves were dropped.
        dropped: its lifetimes.

    The k-th tick of one forward is the k-th of the other, provided that both did the same.
    """
    end = kept.first(run, "forward_end")
    if end != dropped.first(dropped_run, "forward_end") or _shape(run, kept, end) != _shape(dropped_run, dropped, end):
        return None
    natural = list(kept.death)
    for tensor, birth in enumerate(kept.birth):
        if birth >= end:
            break
        if dropped.death[tensor] <= end:
            natural[tensor] = min(dropped.death[tensor], kept.death[tensor])
    return natural


def lifetimes_by_calls(run: WatchedRun, found: Lifetimes) -> list[int]:
    """Guess natural deaths where no second forward compares: a saved tensor's is the saving call's end.

    What the loss outside the model saves is filed under the root, but made after it: forward's end.
    """
    natural = list(found.death)
    exits = {mark.index: found.mark_ticks[i] for i, mark in enumerate(run.marks) if mark.kind == "exit"}
    end = found.first(run, "forward_end")
    for i, mark in enumerate(run.marks):
        if mark.kind == "pack" and (tensor := found.mark_tensors[i][0]) >= 0:
            leave = exits[mark.index] if found.mark_ticks[i] < exits[mark.index] else end
            natural[tensor] = min(found.death[tensor], leave + 1)
    return natural


def _shape(run: WatchedRun, found: Lifetimes, end: int) -> list[tuple[int, object]]:
    """What happened at each tick before `end`, addresses left out."""
    births = [(tick, size) for tick, size in zip(found.birth, found.bytes, strict=True) if tick < end]
    marks = [(tick, (mark.kind, mark.index)) for tick, mark in zip(found.mark_ticks, run.marks, strict=True)]
    return [*births, *((tick, what) for tick, what in marks if tick < end)]


def save_table(
    run: WatchedRun, found: Lifetimes, seconds: list[float], functions: list[int], ops: list[int]
) -> SaveTable:
    """Gather the pack, unpack and release markers of each save; `functions` and `ops` say who made it."""
    packs = [i for i, mark in enumerate(run.marks) if mark.kind == "pack"]
    unpack, release = [found.ticks] * len(packs), [found.ticks] * len(packs)
    for i, mark in enumerate(run.marks):
        if mark.kind == "unpack":
            unpack[mark.index] = min(unpack[mark.index], found.mark_ticks[i])
        elif mark.kind == "release":
            release[mark.index] = found.mark_ticks[i] + 1  # alive up to and including its marker
    return SaveTable(
        tensor=tuple(found.mark_tensors[i][0] for i in packs),
        call=tuple(run.marks[i].index for i in packs),
        pack=tuple(found.mark_ticks[i] for i in packs),
        unpack=tuple(unpack),
        release=tuple(release),
        seconds=tuple(seconds[i] for i in packs),
        function=tuple(functions),
        op=tuple(ops),
    )


def tensor_table(found: Lifetimes, natural: list[int]) -> TensorTable:
    """The storages as columns."""
    return TensorTable(
        bytes=tuple(found.bytes), birth=tuple(found.birth), natural=tuple(natural), death=tuple(found.death)
    )


def call_records(
    run: WatchedRun, found: Lifetimes, seconds: list[float], structures: list[CallStructure]
) -> tuple[CallRecord, ...]:
    """Join what the step and the structural forward saw of each call.

    Args:
        run: the recorded run.
        found: its lifetimes.
        seconds: time of each marker.
        structures: the structural forward's view, in pre-order; where it saw other calls, nothing it says is used
            and every call is refused.
    """
    enters = {mark.index: i for i, mark in enumerate(run.marks) if mark.kind == "enter"}
    exits = {mark.index: i for i, mark in enumerate(run.marks) if mark.kind == "exit"}
    agree = [structure.name for structure in structures] == [call.name for call in run.calls]
    records = []
    for index, call in enumerate(run.calls):
        enter, leave = enters[index], exits[index]
        structure = structures[index] if agree else CallStructure(call.name, refused=_DIFFERS)
        arguments = zip(found.mark_tensors[enter], run.marks[enter].sources, strict=True)
        records.append(
            CallRecord(
                name=call.name,
                occurrence=call.occurrence,
                parent=call.parent,
                stop=call.stop,
                class_name=call.class_name,
                enter=found.mark_ticks[enter],
                exit=found.mark_ticks[leave],
                enter_seconds=seconds[enter],
                exit_seconds=seconds[leave],
                arguments=tuple(
                    Argument(tensor, sources.calls, position in structure.mutated, sources.functions, sources.mixed)
                    for position, (tensor, sources) in enumerate(arguments)
                ),
                outputs=tuple(tensor for tensor in found.mark_tensors[leave] if tensor >= 0),
                signature=structure.signature,
                draws=structure.draws,
                buffers=tuple(structure.buffers),
                refused=structure.refused,
                leaves_traces=structure.leaves_traces,
            )
        )
    return tuple(records)


_DIFFERS = "the model made other calls when its forward ran a second time"


def mark_seconds(run: WatchedRun, clock: Clock, stamped: dict[int, float] | None) -> list[float]:
    """Seconds of each marker since the start of forward.

    Args:
        run: the recorded run, whose own stamps are taken where nothing better is known.
        clock: the clock that made them.
        stamped: seconds of the markers of forward from runs that were only timed, by number of the marker; those of
            functions are not used.

    Returns:
        One value a marker; those without a stamp take that of the marker before.
    """
    places = [i for i, mark in enumerate(run.marks) if mark.stamp is not None]
    readings = dict(zip(places, clock.seconds([run.marks[i].stamp for i in places]), strict=True))
    if stamped is not None:
        end = max(stamped)  # forward_end: backward goes on from there
        late = stamped[end] - readings[end]
        # Functions may have been timed in forwards of their own, a little longer than those that timed calls.
        readings = {
            i: stamped.get(i, seconds + late)
            for i, seconds in readings.items()
            if run.marks[i].kind not in ("begin", "end")
        }
    values, last = [], 0.0
    for i in range(len(run.marks)):
        last = max(readings.get(i, last), last)
        values.append(last)
    return values


def rounded(seconds: float) -> float:
    """Round to six digits, more than a clock can tell: a profile's file is mostly digits."""
    return float(f"{seconds:.6g}")
