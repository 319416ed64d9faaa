"""A picture of one model's points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.frontier.analysis import Row, frontiers, is_right
from benchmarks.picture import new_picture, save

__all__ = ["plot"]


def plot(path: Path, name: str, rows: Sequence[Row]) -> None:
    """Draw recompute overhead over peak, a colour a method; crosses have wrong gradients, lines are frontiers."""
    figure, axes = new_picture()
    ran = [row for row in rows if "error" not in row and row["family"] != "plain"]
    families = list(dict.fromkeys(row["family"] for row in ran))
    for family in families:
        colour = "black" if family == "autockpt" else f"C{families.index(family)}"
        own = [row for row in ran if row["family"] == family]
        for right, marker in ((True, "o"), (False, "x")):
            points = [_point(row) for row in own if is_right(row) == right]
            if points:
                label = family if right else f"{family}, wrong gradients"
                axes.scatter(*zip(*points, strict=True), color=colour, marker=marker, s=22, label=label, zorder=3)
        if family == "autockpt":
            axes.plot(*zip(*sorted(map(_point, own)), strict=True), color=colour, linewidth=1.5)
    for rival, style in (("eager", "--"), ("compile", ":")):
        frontier = [(peak, 100 * overhead) for peak, overhead in frontiers(rows)["time", rival]]
        axes.plot(*zip(*frontier, strict=True), color="grey", linestyle=style, linewidth=1, label=f"best {rival}")
    axes.set(
        title=name, xlabel="measured peak, plain = 1", ylabel="recompute overhead, % of the plain step", xlim=(0, 1.25)
    )
    save(figure, axes, path)


def _point(row: Row) -> tuple[float, float]:
    return row["peak_ratio"], 100 * (row["time"]["ratio"] - 1)
