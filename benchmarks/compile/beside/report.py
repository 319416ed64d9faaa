"""Lines and rows as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.compile.beside.arithmetic import Line, lines
from benchmarks.compile.beside.ways import AGAIN, PLAIN, RATIOS, TORCH, Row
from benchmarks.environment import table


def show(raw: Mapping[str, Any]) -> str:
    """Return what is stored as text: for each backend the lines, then what each model took."""
    return "\n\n".join(
        f"### {backend}\n\n{_lines(found)}\n\n{_pictures(found, backend)}\n\n{_rows(found)}"
        for backend in raw
        if backend != "environment" and (found := {name: each["rows"] for name, each in raw[backend].items()})
    )


def picture(name: str, backend: str) -> str:
    """Return where the picture of a model by a backend lies, seen from the page."""
    return f"plots/{name}-{backend}.png"


def _pictures(models: Iterable[str], backend: str) -> str:
    return "\n".join(f"![{name} by {backend}]({picture(name, backend)})" for name in models)


def _lines(models: Mapping[str, Sequence[Row]]) -> str:
    noise = [row["ratio"] - 1 for rows in models.values() for row in rows if row["way"] == AGAIN and "ratio" in row]
    wrong = [row for rows in models.values() for row in rows if row["way"] == TORCH and not row["right"]]
    ratios = sum(row["way"] == TORCH for rows in models.values() for row in rows)
    said = f"torch's ratios were wrong in {len(wrong)} of {ratios} rows."
    if noise:
        said += f" A compiled plain step beside its twin: {min(noise):+.1%} to {max(noise):+.1%}."
    heads = ["line", "goal", "found", "met", "by model", "missed at"]
    return f"{said}\n\n{table(heads, map(_line, lines(models)))}"


def _line(line: Line) -> list[str]:
    figure = "none" if line.figure is None else f"{line.figure:.3g}"
    by_model = ", ".join(f"{name} {value:.3g}" for name, value in line.found.items() if value or line.goal)
    met = "not known" if line.figure is None else "yes" if line.met else "**no**"
    return [line.name, f"{line.goal:g}", figure, met, by_model, "; ".join(line.missed)]


def _rows(models: Mapping[str, Sequence[Row]]) -> str:
    heads = ["model", "way", "asked", "peak", "first step", "right", "time", "compiling, s", "planning, s"]
    cells = []
    for name, rows in models.items():
        plain = next(row["peak_bytes"] for row in rows if row["way"] == PLAIN)
        cells += [[name, *_row(row, plain)] for row in rows]
    return table(heads, cells)


def _row(row: Row, plain_bytes: int) -> list[str]:
    """Return the cells of a way; bytes are shares of what the compiled plain step adds."""
    ratio = row["way"] == TORCH and row["asked"] in RATIOS
    asked = "" if row["asked"] is None else f"{row['asked']:g}" if ratio else f"{row['asked'] / plain_bytes:.4f}"
    if "peak_bytes" not in row:
        lowest = row.get("lowest_bytes")
        told = f"infeasible: {lowest / plain_bytes:.4f}" if lowest is not None else f"refused: {row['refused']}"
        return [row["way"], asked, told, *[""] * 5]
    right = "yes" if row["bits"] else f"{'yes' if row['right'] else '**wrong**'}: {row['relative_difference']:.1e}"
    return [
        row["way"],
        asked,
        f"{row['peak_bytes'] / plain_bytes:.4f}",
        f"{row['first_bytes'] / plain_bytes:.4f}",
        right,
        f"{row['ratio']:.3f} ± {row['ratio_error']:.3f}" if "ratio" in row else "",
        f"{max(row['compile_seconds'], 0):.1f}",
        f"{row['planning_seconds']:.1f}" if "planning_seconds" in row else "",
    ]
