"""A memory timeline as a small text chart."""

from __future__ import annotations

import textwrap
from itertools import groupby, pairwise

from ..._data.timeline import MemoryStep, MemoryTimeline
from ...solvers.units import format_like
from .names import place

ROWS = 10

LAYERS = (
    ("█", "#bbbbbb", "static", ("static_bytes",)),
    ("▓", "#4477aa", "gradients", ("gradient_bytes",)),
    ("▒", "#66ccee", "activations and outputs", ("activation_bytes", "output_bytes")),
    ("░", "#ccbb44", "boundaries", ("boundary_bytes",)),
    ("+", "#ee6677", "restored", ("restored_bytes",)),
    ("·", "#aa3377", "transients", ("transient_bytes",)),
)
"""From the bottom up: glyph, colour in a picture, name, and the fields of a `MemoryStep` that the layer adds up.

Colour-blind people can tell the colours apart: the scheme is Paul Tol's.
"""


def layer_bytes(step: MemoryStep, parts: tuple[str, ...]) -> int:
    """Return the bytes of a layer of `LAYERS` in a step: the sum of its `parts`."""
    return sum(getattr(step, part) for part in parts)


def timeline_chart(timeline: MemoryTimeline, width: int, *, asked: object = None, rows: int = ROWS) -> str:
    """Draw the memory over the step. A column that covers several steps shows the highest.

    Args:
        timeline: the timeline to draw.
        width: the width of the chart, in characters, at most.
        asked: a budget as the user wrote it; bytes are shown in its unit.
        rows: the height of the chart, in lines. With fewer than `ROWS` the legend is shortened too.
    """
    peak_bytes, n_steps = timeline.peak_bytes, len(timeline.steps)
    labels = {row: format_like(round(peak_bytes * row / rows), asked) for row in (rows, rows // 2, 0)}
    margin = max(map(len, labels.values()))
    n_columns = min(width - margin - 2, n_steps)
    edges = [column * n_steps // n_columns for column in range(n_columns + 1)]
    columns = [
        _column(max(timeline.steps[start:stop], key=lambda step: step.level_bytes), peak_bytes, rows)
        for start, stop in pairwise(edges)
    ]
    lines = ["Predicted memory over the step"]
    for row in range(rows, 0, -1):
        drawn = "".join(column[row - 1] for column in columns)
        lines.append(f"{labels.get(row, ''):>{margin}} {'┤' if row in labels else '│'}{drawn}".rstrip())
    lines.append(f"{labels[0]:>{margin}} ┼{_phases(timeline, edges)}")
    peak = timeline.steps[timeline.peak]
    before = margin + 2 + next(column for column in range(n_columns) if edges[column + 1] > timeline.peak)
    lines.append(_under_arrow(f"peak, {place(peak.name)}", before, width))
    glued = "\u00a0"  # a line never ends between a glyph and its name
    names = {glyph: name if rows == ROWS else name.partition(" and ")[0] for glyph, _, name, _ in LAYERS}
    legend = ", ".join(f"{glyph}{glued}{name.replace(' ', glued)}" for glyph, name in names.items())
    indent = " " * (margin + 2) if rows == ROWS else ""
    filled = textwrap.fill(legend, width, initial_indent=indent, subsequent_indent=indent)
    return "\n".join([*lines, filled.replace(glued, " ")])


def _column(step: MemoryStep, peak_bytes: int, rows: int) -> str:
    """The glyphs of one column, from the bottom up."""
    glyphs, level_bytes = "", 0
    for glyph, _, _, parts in LAYERS:
        level_bytes += layer_bytes(step, parts)
        glyphs += glyph * (round(rows * level_bytes / peak_bytes) - len(glyphs))
    return glyphs.ljust(rows)


def _phases(timeline: MemoryTimeline, edges: list[int]) -> str:
    """The axis. Each phase has its name where it begins, if there is room."""
    axis = ""
    for phase, columns in groupby(timeline.steps[edge].phase for edge in edges[:-1]):
        room = len(list(columns))
        axis += (f"├{phase}" if room > len(phase) else "├").ljust(room, "─")
    return axis


def _under_arrow(said: str, before: int, width: int) -> str:
    """An arrow after `before` blanks, with a text beside it, or below it if the text is too long."""
    if before + 2 + len(said) <= width:
        return f"{'':>{before}}↑ {said}"
    if len(said) + 1 <= before:
        return f"{said} ↑".rjust(before + 1)
    return f"{'':>{before}}↑\n" + textwrap.fill(said, width)
