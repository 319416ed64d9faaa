"""The ways to take a step on one device, in a sentence and as a table."""

from __future__ import annotations

from ..._fit.fit import FitRow, Fits
from ..._fit.ways import StepWay
from ...solvers.units import format_bytes, format_seconds
from ..page import Bar, PageTable, counted
from .common import rated

MOST_WAYS = 8
"""Rows of the table of ways; ``--json`` prints all."""

CHANGES = "microbatches normalize by their own statistics (BatchNorm), so the result is another one"
"""Why ways in microbatches are not recommended."""

PAIRS = "A loss over pairs of the batch, contrastive or ranking, is another one in microbatches"
"""What cannot be seen."""


def answer(found: Fits, several: bool) -> str:
    """Say in a sentence how the step is taken fastest, or on how many devices it fits."""
    if len(found.rows) > 1:
        return _on_how_many(found, "rows below" if several else "devices")
    (row,) = found.rows
    usable = f"{format_bytes(row.device.usable_bytes)} usable"
    way = row.best
    if way is None and row.ways[0].fits:
        return f"Does not fit {row.gpu} at once ({usable}), and {CHANGES}"
    if way is None and row.floor_bytes > row.device.usable_bytes:
        floor = format_bytes(row.floor_bytes)
        return f"Does not fit {row.gpu}: weights, gradients and optimizer alone take {floor} ({usable})"
    if way is None:
        return f"Does not fit {row.gpu}: no way was found below {format_bytes(lowest_bytes(row))} ({usable})"
    speed = f"{rate(row, way)} samples/s" if rate(row, way) != "-" else ""
    if way.plan is None and way.microbatches == 1:
        return f"Fits {row.gpu} as it is{speed and f', {speed}'} ({usable})"
    return f"On {row.gpu}: {way_in_words(way)}{speed and f': {speed}'}{_why(found, row, way)}"


def _on_how_many(found: Fits, what: str) -> str:
    """Say on how many devices the step fits, and how; `what` they are called."""
    best = [row.best for row in found.rows if row.best is not None]
    split = sum(way.microbatches > 1 for way in best)
    plain = sum(way.microbatches == 1 and way.plan is None for way in best)
    numbers = {"as it is": plain, "with a plan": len(best) - plain - split, "in microbatches": split}
    how = ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
    number = f"{len(best)} of" if best else "none of the"
    return ": ".join(filter(None, [f"Fits {number} {len(found.rows)} {what}", how]))


def _why(found: Fits, row: FitRow, best: StepWay) -> str:
    """Say how much faster the best way is than the fastest that takes the samples otherwise, in parts or at once."""
    good = [way for way in row.ways if way.is_good and _nature(way) != _nature(best)]
    other = next((way for way in good if (way.microbatches > 1) != (best.microbatches > 1)), next(iter(good), None))
    if other is None:
        return "; microbatches would change the result (BatchNorm)" if found.mixes else "; nothing else fits"
    if not (row.timed and best.seconds):
        return f"; {way_in_words(other)} fits too"
    share = other.seconds / best.seconds - 1
    much = f"{share:.0%} faster than" if share >= 0.005 else "as fast as"
    return f", {much} {way_in_words(other)}"


def _nature(way: StepWay) -> tuple[bool, bool]:
    return way.microbatches > 1, way.plan is not None


def way_in_words(way: StepWay) -> str:
    """Say what a way is."""
    of = "the batch" if way.samples is None else counted(way.samples, "sample")
    moves = ", which moves tensors" if way.kind == "offloaded" else ""
    if way.microbatches == 1:
        return f"{of} at once, plain" if way.plan is None else f"a plan for {of}{moves}"
    each = f"{way.microbatches} microbatches of {way.samples}"
    return f"{each}, plain" if way.plan is None else f"{each}, under a plan"


def lowest_bytes(row: FitRow) -> int:
    """Return the lowest peak of all ways that train as the whole batch does."""
    return min(row.minimum_bytes, *(way.peak_bytes for way in row.ways if way.same_result))


def rate(row: FitRow, way: StepWay | None) -> str:
    """Return the samples a second of a way; ``-`` where they are not known."""
    return rated(way.samples_per_second if way is not None and row.timed else None)


def slower_than_plain(row: FitRow, way: StepWay) -> float:
    """Return by which share a way takes longer than the plain step would with memory for it."""
    plain = next(each for each in row.ways if each.microbatches == 1 and each.plan is None)
    return way.seconds / plain.seconds - 1 if plain.seconds else 0.0


def ways_table(row: FitRow, most: int = MOST_WAYS) -> PageTable:
    """Lay out the ways on one device, the fastest that fits first; at most so many."""
    shown = row.ways[:most]
    fastest = max((way.samples_per_second or 0.0 for way in row.ways), default=0.0) or 1.0
    rows: list[list[str | Bar]] = [
        [
            way_in_words(way),
            format_bytes(way.peak_bytes),
            format_seconds(way.seconds) if row.timed and way.seconds else "-",
            Bar(rate(row, way), (way.samples_per_second or 0.0) / fastest),
            "no memory" if not way.fits else "" if way.same_result else "another result",
        ]
        for way in shown
    ]
    below = []
    if row.largest:
        below.append(f"at once fit about {counted(row.largest, 'sample')} with a plan, {row.largest_plain} without")
    if any(way.microbatches > 1 for way in shown):
        below.append(f"microbatches: their gradients add up, and the optimizer steps once. {PAIRS}")
    if not row.timed:
        below.append(f"{row.gpu}: memory alone, so no seconds; the order is that of the recorded device's seconds")
    return PageTable(
        header=["way", "peak", "a step", "samples/s", ""], rows=rows, below="\n".join(below), least_told=("a step",)
    )


def way_document(row: FitRow, way: StepWay) -> dict[str, object]:
    """The figures of a way as JSON has them."""
    return {
        "way": way.kind,
        "microbatches": way.microbatches,
        "samples": way.samples,
        "fits": way.fits,
        "same_result": way.same_result,
        "predicted_peak_bytes": way.peak_bytes,
        "predicted_seconds": way.seconds if row.timed else None,
        "predicted_samples_per_second": way.samples_per_second if row.timed else None,
    }
