"""What the pages share: widths, tables, totals, filled text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

MINIMUM_WIDTH = 60


DEFAULT_WIDTH = 100


MODES = {
    "measured": "a step ran",
    "fake": "nothing ran; memory and seconds are predicted for the device",
}


def how_timed(profile_mode: str | None) -> str:
    """Say where the seconds of a plain step come from."""
    return "predicted" if profile_mode == "fake" else "recorded"


def drop_columns(columns: dict[str, list[str]], least_told: Sequence[str], width: int) -> None:
    """Take out of a table's columns, by name, those that tell least until it fits; they go in this order."""
    for name in least_told:
        if sum(max(map(len, (title, *cells))) + 2 for title, cells in columns.items()) - 2 > width:
            del columns[name]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, elide: int) -> str:
    """Lay out `rows` under `header` within `width` columns.

    Args:
        header: one word for each column.
        rows: cells; columns of figures (or ``-`` for none) are aligned right.
        width: columns available.
        elide: the column that is shortened, in the middle of its cells, where the table is too wide.

    Returns:
        Lines without trailing blanks.
    """
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    spare = width - sum(widths) - 2 * (len(widths) - 1)
    if spare < 0:
        widths[elide] = max(widths[elide] + spare, len(header[elide]), 12)
    right = [all(row[i].lstrip("-")[:1].isdigit() or row[i] == "-" for row in rows) for i in range(len(header))]
    lines = []
    for row in cells:
        fitted = [_shorten(cell, widths[i]) if i == elide else cell for i, cell in enumerate(row)]
        aligned = [
            cell.rjust(size) if on_right else cell.ljust(size)
            for cell, size, on_right in zip(fitted, widths, right, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    lines.insert(1, "-" * min(width, max(len(line) for line in lines)))
    return "\n".join(lines)


def format_totals(totals: Sequence[tuple[str, str, str]], width: int) -> str:
    """Lay out name, figure and remark; a remark that does not fit moves to lines of its own."""
    names = max(len(name) for name, _, _ in totals)
    figures = max(len(figure) for _, figure, _ in totals)
    lines = []
    for name, figure, remark in totals:
        line = f"{name.ljust(names)}  {figure.rjust(figures)}"
        if len(line) + 2 + len(remark) <= width:
            lines.append(f"{line}  {remark}".rstrip())
        else:
            lines += [line, fill(remark, width, indent="    ")]
    return "\n".join(lines)


def format_notes(notes: Sequence[str], width: int) -> list[str]:
    if not notes:
        return []
    return ["\n".join(["Notes", *(fill(note, width, indent="  ") for note in notes)])]


def fill(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shorten(cell: str, size: int) -> str:
    """Cut the middle out of `cell` where it is longer than `size`, not out of its indent while half of that is left."""
    if len(cell) <= size:
        return cell
    word = cell.lstrip()
    indent = min(len(cell) - len(word), size // 2)
    room = size - indent
    if len(word) > room:
        head = (room - 1) // 3
        word = f"{word[:head]}…{word[len(word) - (room - 1 - head) :]}"
    return " " * indent + word
