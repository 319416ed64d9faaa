"""A stage in a few lines: of what a lent machine prints only the end is seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import COLUMNS, both, device_of

__all__ = ["summary"]

FIGURES = 5
"""Of a row; the tables have all."""

WIDTH = 170
MOST_ROWS = 32


def summary(document: dict[str, Any], archive: Path, left_out: Sequence[str]) -> str:
    """Return a line for the stage, one for each row, and where the archive is and what it lacks."""
    rows = document["rows"]
    done = sum(row["outcome"] == "done" for row in rows)
    head = f"stage {document['stage']}, {document['title']}, on {device_of(document)}"
    lines = [f"{head}: {done} of {len(rows)} rows done, {document['seconds']:.0f} s"]
    lines += [line[:WIDTH] for line in map(_line(COLUMNS[document["stage"]]), rows)][:MOST_ROWS]
    if len(rows) > MOST_ROWS:
        lines.append(f"  and {len(rows) - MOST_ROWS} rows more: see stage{document['stage']}.md")
    size = f"{archive.stat().st_size / 2**20:.2f} MiB"
    return "\n".join([*lines, f"  {archive} ({size}){_without(left_out)}"])


def _line(columns: Sequence[str]) -> Any:
    def line(row: dict[str, Any]) -> str:
        said = row.get("error", "") if row["outcome"] != "done" else ", ".join(_figures(row, columns))
        return f"  {row['outcome']:<8} {row['name']}{': ' if said else ''}{said}"

    return line


def _figures(row: dict[str, Any], columns: Sequence[str]) -> Iterator[str]:
    found = ((name, both(row, name)) for name in columns)
    yield from [f"{name} {figure}" for name, figure in found if figure][:FIGURES]


def _without(left_out: Sequence[str]) -> str:
    return f"; not in it: {', '.join(left_out)}" if left_out else ""
