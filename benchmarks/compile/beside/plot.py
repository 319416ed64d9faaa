"""A picture of one model's ways: what a step takes longer, over its peak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.compile.beside.arithmetic import OWN
from benchmarks.compile.beside.ways import EAGER, PLAIN, TORCH, Row
from benchmarks.picture import new_picture, save

SERIES = (
    (OWN, "autockpt, compiled", "black", "-"),
    ((EAGER,), "autockpt, eager", "C0", "--"),
    ((TORCH,), "torch's ratio", "C1", ":"),
)


def plot(path: Path, name: str, rows: Sequence[Row]) -> None:
    """Draw the time of each way over its peak; what is wrong has no time, and stands as a cross at the bottom.

    Args:
        path: where the picture goes.
        name: the model's.
        rows: what its ways took.
    """
    plain_bytes = next(row["peak_bytes"] for row in rows if row["way"] == PLAIN)
    figure, axes = new_picture()
    for ways, label, colour, style in SERIES:
        ran = [row for row in rows if row["way"] in ways and "peak_bytes" in row]
        timed = sorted((row["peak_bytes"] / plain_bytes, 100 * (row["ratio"] - 1)) for row in ran if "ratio" in row)
        if timed:
            axes.plot(*zip(*timed, strict=True), color=colour, linestyle=style, marker="o", markersize=4, label=label)
        wrong = [row["peak_bytes"] / plain_bytes for row in ran if not row["right"]]
        if wrong:
            bottom = axes.get_xaxis_transform()
            axes.scatter(
                wrong, [0.02] * len(wrong), color=colour, marker="x", transform=bottom, label=f"{label}, wrong"
            )
    axes.set(title=name, xlabel="measured peak, compiled plain = 1", ylabel="longer than the plain step, %")
    save(figure, axes, path)
