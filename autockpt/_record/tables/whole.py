"""Units of FSDP2 in a step: what gathering each one takes, and when in backward it was gathered."""

from __future__ import annotations

from ..._data.step.world import UnitRecord
from ..watch.marks import SeenStep
from .lifetimes import Lifetimes

Spans = tuple[tuple[int, int], ...]


def unit_records(run: SeenStep, found: Lifetimes) -> tuple[UnitRecord, ...] | None:
    """Return a record for each call of a unit; None if there are no units, or no backward has read anything."""
    ticks = [each.tick for each in found.of_kind("whole")]
    stops = [*ticks[1:], found.ticks]
    if not ticks:
        return None

    def spans(name: str, which: int) -> Spans:
        return tuple(
            (begin, stop) for begin, stop, seen in zip(ticks, stops, run.whole, strict=True) if name in seen[which]
        )

    return tuple(
        UnitRecord(number, *call.gathers, spans(call.name, 0), spans(call.name, 1))
        for number, call in enumerate(run.calls)
        if any(call.gathers)
    )
