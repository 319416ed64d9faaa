"""What a user chooses by, from rows alone: lowest peaks, time at equal peak, and whether more memory costs less."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.compile.beside.ways import AT_TORCHS, EAGER, LOWEST, OURS, PLAIN, TORCH, Row
from benchmarks.frontier.derive import cost_ratio, geometric_mean

OWN = (LOWEST, OURS, AT_TORCHS)

POINTS = 0.02
"""By so much of a plain step a way may take longer at no peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that a user chooses by.

    Attributes:
        name: what it is.
        goal: the highest figure that is good enough.
        found: the figure of each model.
        missed: where it is above the goal, in words.
        mean: whether the goal is for the geometric mean over models; else each has to meet it.
    """

    name: str
    goal: float
    found: Mapping[str, float]
    missed: tuple[str, ...] = ()
    mean: bool = False

    @property
    def figure(self) -> float | None:
        """The figure that is held against the goal; None where no model has one."""
        values = [*self.found.values()]
        return geometric_mean(values) if self.mean else max(values, default=None)

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return not self.missed and (self.figure is None or self.figure <= self.goal)


def lines(models: Mapping[str, Sequence[Row]]) -> list[Line]:
    """Work out all lines for a backend.

    Args:
        models: the rows of each.
    """
    lowest = {name: ratio for name, rows in models.items() if (ratio := lowest_beside_torchs(rows)) is not None}
    equal = {name: pairs for name, rows in models.items() if (pairs := at_equal_peak(rows))}
    times = {name: _mean(own["ratio"] / its["ratio"] for own, its in pairs) for name, pairs in equal.items()}
    worst = {name: max(slower(own, its) for own, its in pairs) for name, pairs in equal.items()}
    later = tuple(
        f"{name}: {slower(own, its):+.3f} ± {error(own, its):.3f} at {own['asked']} B"
        for name, pairs in equal.items()
        for own, its in pairs
        if slower(own, its) > POINTS
    )
    eager = {name: _mean(ratios) for name, rows in models.items() if (ratios := beside_eager(rows))}
    above = "our lowest peak over torch's lowest right one"
    return [
        Line(name=f"{above}, each model", goal=1.0, found=lowest, missed=_above(lowest, 1.0)),
        Line(name=f"{above}, geometric mean", goal=0.8, found=lowest, mean=True),
        _counted("steps above their budget", models, over_budget),
        _counted("steps that are not right", models, not_right),
        _counted("larger budgets with a lower peak, or with more predicted to run again", models, falls),
        Line(name="time at torch's right peaks over torch's, geometric mean", goal=1.0, found=times, mean=True),
        Line(
            name="time at torch's right peaks less torch's, in plain steps, at worst",
            goal=POINTS,
            found=worst,
            missed=later,
        ),
        _counted("peaks of ours at which torch is right and faster by more than that", models, dominated),
        Line(
            name="overhead over that of our eager plan at the same peak, geometric mean",
            goal=0.8,
            found=eager,
            mean=True,
        ),
    ]


def _counted(name: str, models: Mapping[str, Sequence[Row]], places: Callable[[Sequence[Row]], list[str]]) -> Line:
    """Return a line that counts places, of which there should be none."""
    found = {model: places(rows) for model, rows in models.items()}
    missed = tuple(f"{model}: {', '.join(each)}" for model, each in found.items() if each)
    return Line(name=name, goal=0, found={model: float(len(each)) for model, each in found.items()}, missed=missed)


def _above(found: Mapping[str, float], goal: float) -> tuple[str, ...]:
    return tuple(f"{name}: {figure:.3f}" for name, figure in found.items() if figure > goal)


def _mean(ratios: Iterable[float]) -> float:
    mean = geometric_mean(ratios)
    assert mean is not None
    return mean


def measured(rows: Iterable[Row], *ways: str) -> list[Row]:
    """Return the rows of some ways that ran."""
    return [row for row in rows if row["way"] in ways and "peak_bytes" in row]


def lowest_beside_torchs(rows: Sequence[Row]) -> float | None:
    """Return our lowest peak over torch's lowest right one, which is the plain step's where no ratio is right."""
    own = [row["peak_bytes"] for row in measured(rows, *OWN) if row["right"]]
    theirs = [row["peak_bytes"] for row in measured(rows, PLAIN, TORCH) if row["right"]]
    return min(own) / min(theirs) if own and theirs else None


def torchs_best(rows: Sequence[Row], peak_bytes: int) -> Row | None:
    """Return the fastest of torch's right steps within a peak, the plain one among them; None where there are none."""
    within = [row for row in measured(rows, PLAIN, TORCH) if row["right"] and row["peak_bytes"] <= peak_bytes]
    return min((row for row in within if "ratio" in row), key=lambda row: float(row["ratio"]), default=None)


def at_equal_peak(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return what ours took at torch's right peaks, each with the fastest that torch has there."""
    timed = [row for row in measured(rows, AT_TORCHS) if "ratio" in row]
    return [(row, best) for row in timed if (best := torchs_best(rows, row["asked"])) is not None]


def slower(own: Row, its: Row) -> float:
    """Return by how much longer a step takes than another, in plain steps."""
    return float(own["ratio"] - its["ratio"])


def error(own: Row, its: Row) -> float:
    """Return the standard error of that."""
    return math.hypot(own["ratio_error"], its["ratio_error"])


def beside_eager(rows: Sequence[Row]) -> list[float]:
    """Return our overhead over the eager plan's at each budget that both hold; both are shares of their plain steps."""
    eager = {row["asked"]: row["ratio"] for row in measured(rows, EAGER) if "ratio" in row}
    own = {row["asked"]: row["ratio"] for row in measured(rows, OURS) if "ratio" in row}
    return [cost_ratio(own[budget] - 1, eager[budget] - 1) for budget in own if budget in eager]


def over_budget(rows: Sequence[Row]) -> list[str]:
    """Return the budgets that were not kept to, by how much."""
    held = measured(rows, OURS, AT_TORCHS)
    above = ((row["asked"], max(row["peak_bytes"], row["first_bytes"])) for row in held)
    return [f"{peak / asked - 1:.2%} at {asked} B" for asked, peak in above if peak > asked]


def not_right(rows: Sequence[Row]) -> list[str]:
    """Return our rows with other gradients, buffers or draws than the compiled plain step."""
    return [
        f"{row['relative_difference']:.1e} at {row['peak_bytes']} B" for row in measured(rows, *OWN) if not row["right"]
    ]


def falls(rows: Sequence[Row]) -> list[str]:
    """Return the budgets at which a plan stands lower than at a smaller one, or is predicted to run more again."""
    asked = sorted(measured(rows, OURS), key=lambda row: float(row["asked"]))
    found = []
    for low, high in pairwise(asked):
        if high["peak_bytes"] < low["peak_bytes"]:
            found.append(f"peak {high['peak_bytes'] / low['peak_bytes'] - 1:.2%} at {high['asked']} B")
        if high["predicted_seconds"] > low["predicted_seconds"]:
            found.append(
                f"{high['predicted_seconds'] / low['predicted_seconds'] - 1:+.1%} to run again at {high['asked']} B"
            )
    return found


def dominated(rows: Sequence[Row]) -> list[str]:
    """Return our peaks at which torch is right, no higher and faster, by more than `POINTS` and than noise explains."""
    timed = [row for row in measured(rows, *OWN) if "ratio" in row]
    pairs = ((row, best) for row in timed if (best := torchs_best(rows, row["peak_bytes"])) is not None)
    return [
        f"{slower(row, best):+.3f} ± {error(row, best):.3f} at {row['peak_bytes']} B"
        for row, best in pairs
        if slower(row, best) > max(POINTS, 2 * error(row, best))
    ]
