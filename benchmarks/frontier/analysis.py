"""What the rows of one model say about us against the peers. Plain data in and out; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.frontier.derive import Point, cost_ratio, geometric_mean, interpolate, lower_frontier

__all__ = ["Comparison", "Row", "Summary", "compare_rows", "frontiers", "is_right", "summarise"]

Row = Mapping[str, Any]
AXES: dict[str, Callable[[Row], float]] = {
    "time": lambda row: row["time"]["ratio"] - 1,
    "FLOPs": lambda row: row["flops_ratio"] - 1,
}
"""What recomputing costs, over the plain step."""
RIVALS = ("eager", "compile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One of our points against the rivals at the same measured peak.

    Attributes:
        row: ours.
        theirs: recompute overhead by axis and rival; None where that rival does not reach the peak.
        ratios: our overhead over theirs, where they reach it and we did not fail.
    """

    row: Row
    theirs: dict[tuple[str, str], float | None]
    ratios: dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A model's comparisons together.

    Attributes:
        points: how many of ours ran.
        good: how many of them replayed, freed bytes, kept their budget and changed nothing.
        reached: how many of them a rival reaches too, by rival.
        means: geometric mean of the ratios, by axis and rival.
        worst_prediction: largest distance of predicted from measured recompute overhead; None where nothing ran.
    """

    points: int
    good: int
    reached: dict[str, int]
    means: dict[tuple[str, str], float | None]
    worst_prediction: float | None


def frontiers(rows: Iterable[Row]) -> dict[tuple[str, str], list[Point]]:
    """Return lower frontiers by axis and rival: of points with the plain step's gradients, and the plain step."""
    usable = [row for row in rows if is_right(row) and _rival(row)]
    return {
        (axis, rival): lower_frontier(
            [(1.0, 0.0), *((row["peak_ratio"], cost(row)) for row in usable if _rival(row) == rival)]
        )
        for axis, cost in AXES.items()
        for rival in RIVALS
    }


def compare_rows(rows: Sequence[Row]) -> list[Comparison]:
    """Hold each of our points that ran against the rivals' frontiers."""
    known, found = frontiers(rows), []
    for row in rows:
        if row["family"] != "autockpt" or "error" in row:
            continue
        theirs = {key: interpolate(frontier, row["peak_ratio"]) for key, frontier in known.items()}
        ratios = {
            key: cost_ratio(AXES[key[0]](row), cost)
            for key, cost in theirs.items()
            if cost is not None and is_right(row) and "failure" not in row
        }
        found.append(Comparison(row=row, theirs=theirs, ratios=ratios))
    return found


def summarise(comparisons: Sequence[Comparison]) -> Summary:
    """Sum up a model's comparisons, or those of several models."""
    errors = [abs(one.row["predicted_overhead"] - AXES["time"](one.row)) for one in comparisons]
    return Summary(
        points=len(comparisons),
        good=sum(
            one.row["met"] and "failure" not in one.row and one.row["gradients"] == one.row["buffers"] == "equal"
            for one in comparisons
        ),
        reached={rival: sum(("time", rival) in one.ratios for one in comparisons) for rival in RIVALS},
        means={
            (axis, rival): geometric_mean(one.ratios[axis, rival] for one in comparisons if (axis, rival) in one.ratios)
            for axis in AXES
            for rival in RIVALS
        },
        worst_prediction=max(errors, default=None),
    )


def is_right(row: Row) -> bool:
    """Whether a row ran, with the plain step's gradients but for rounding."""
    return "error" not in row and row["gradients"] != "wrong"


def _rival(row: Row) -> str | None:
    if row["family"] in ("autockpt", "plain"):
        return None
    return "compile" if row["family"] == "compile" else "eager"
