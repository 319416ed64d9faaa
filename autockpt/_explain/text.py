"""Reports as text for people, in the width that they have."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from .._parts import PeakParts
from ..solvers.units import format_bytes, format_seconds
from .chart import timeline_chart
from .frontier import FrontierReport
from .reports import SMALL, PlanReport, ProfileReport, RefusalRow, SegmentRow, label

__all__ = ["DEFAULT_WIDTH", "MINIMUM_WIDTH", "format_table", "frontier_text", "parts_text", "plan_text", "profile_text"]

MINIMUM_WIDTH = 60


DEFAULT_WIDTH = 100


_LEAST_TOLD = ("freed", "solver", "segments")  # columns of a frontier that go, in this order, where it is too wide


_NAMED = 6  # calls named for each refusal reason; the rest are counted


def plan_text(report: PlanReport, *, width: int = DEFAULT_WIDTH) -> str:
    """Render a report of a plan."""
    width = max(width, MINIMUM_WIDTH)
    made_by = "written by hand" if report.status == "manual" else f"by {report.solver}, {report.status}{_gap(report)}"
    blocks = [_fill(f"Plan for {report.model or 'any model'}, {made_by}", width)]

    totals: list[tuple[str, str, str]] = []
    goal, budget_bytes = report.goal, report.budget_bytes
    if goal is not None and goal.budget_bytes is None:
        overhead = goal.max_overhead
        totals.append(("asked for", "min" if overhead is None else f"{overhead:.1%}", str(goal)))
        budget_bytes = None
    elif budget_bytes is not None:
        share_of = str(goal) if goal is not None and goal.total_bytes is not None else ""
        totals.append(("budget", format_bytes(budget_bytes), share_of))
    if report.predicted_peak_bytes:
        share = f"{report.predicted_peak_bytes / budget_bytes:.1%} of the budget" if budget_bytes else ""
        totals.append(("predicted peak", format_bytes(report.predicted_peak_bytes), share))
        totals.append(("predicted plain peak", format_bytes(report.predicted_plain_peak_bytes), ""))
    if report.recorded_plain_seconds:
        totals.append(("predicted recompute", format_seconds(report.predicted_recompute_seconds), "per step"))
        plain = f"of the plain step, {format_seconds(report.recorded_plain_seconds)} as recorded"
        totals.append(("predicted recompute overhead", f"{report.predicted_recompute_overhead:.1%}", plain))
        if report.lower_bound_seconds is not None and report.segments:
            least = format_seconds(report.lower_bound_seconds)
            totals.append(("least by any method", least, "operator by operator, the host's time not counted"))
    if report.profile_mode:
        totals.append(("profile", report.profile_mode, _MODES[report.profile_mode]))
    if totals:
        blocks.append(_totals(totals, width))
    if report.timeline is not None:
        blocks.append(timeline_chart(report.timeline, width=width))
    pins = (("keep", report.pinned_keep), ("recompute", report.pinned_recompute))
    pinned = [f"{what} [{', '.join(patterns)}]" for what, patterns in pins if patterns]
    if pinned:
        blocks.append(_fill(f"Pinned: {'; '.join(pinned)}", width))

    if report.segments:
        count = sum(row.segments for row in report.segments)
        calls = sum(row.segments * row.calls_each for row in report.segments)
        title = f"Recomputed: {_count(count, 'segment')} of {_count(calls, 'call')} together"
        predicted = any(row.freed_bytes or row.recompute_seconds for row in report.segments)
        header = ["segments", "calls", *(["freed", "boundary", "seconds"] if predicted else [])]
        table = [
            [
                str(row.segments),
                row.calls,
                *(
                    [
                        format_bytes(row.freed_bytes),
                        format_bytes(row.boundary_bytes),
                        format_seconds(row.recompute_seconds),
                    ]
                    if predicted
                    else []
                ),
            ]
            for row in report.segments
        ]
        title += "; figures of each segment, as predicted" if predicted else ""
        blocks.append(_fill(title, width) + "\n" + format_table(header, table, width, elide=1))
        for row in report.segments:
            if row.keep or row.skip:
                blocks.append(_selective(row, width))
    else:
        blocks.append("Recomputed: nothing, every call is kept")
    return "\n\n".join([*blocks, *_refusals(report.refused, width), *_notes(report.notes, width)]) + "\n"


def parts_text(parts: PeakParts, budget_bytes: int, *, width: int = DEFAULT_WIDTH) -> str:
    """Render what the lowest peak that can be reached consists of, beside the budget that it is above."""
    width = max(width, MINIMUM_WIDTH)
    missing = f"{format_bytes(parts.peak_bytes - budget_bytes)} above the budget of {format_bytes(budget_bytes)}"
    totals = [(name, format_bytes(size), f"{size / parts.peak_bytes:.0%}") for name, size in parts.named() if size]
    where = f"It stands at: {parts.step}"
    where += f", in {parts.op}" if parts.op else ""
    where += f"; most of what is restored belongs to {parts.segment}" if parts.segment else ""
    head = _totals([("predicted minimum", format_bytes(parts.peak_bytes), missing)], width)
    return "\n\n".join([head, _fill(where, width), _totals(totals, width)]) + "\n"


def _selective(row: SegmentRow, width: int) -> str:
    """Say what a replay does not run again."""
    said = [f"In {row.calls} {format_bytes(row.kept_bytes)} are kept instead of being computed again"]
    for what, units in (("keep", row.keep), ("skip", row.skip)):
        if units:
            said.append(f"{what} [{', '.join(units)}]")
    return _fill("; ".join(said), width)


def profile_text(report: ProfileReport, *, width: int = DEFAULT_WIDTH) -> str:
    """Render a report of a profile."""
    width = max(width, MINIMUM_WIDTH)
    head = f"Profile of {report.model}, recorded {report.recorded} on {report.device}, torch {report.torch_version}"
    parts = [f"{name} {format_bytes(size)}" for name, size in report.static_bytes.items() if size]
    peak = "recorded" if report.mode == "real" and not report.optimizer else "predicted"
    saved = "predicted" if report.mode == "fake" else "recorded"
    times = "recorded" if report.times == "measured" else "predicted"
    totals = [
        (f"{peak} plain peak", format_bytes(report.plain_peak_bytes), ""),
        ("of it static", format_bytes(sum(report.static_bytes.values())), ", ".join(parts)),
        (f"{saved} activations", format_bytes(report.activation_bytes), "saved for backward, each storage once"),
        (f"{times} plain step", format_seconds(report.plain_seconds), ""),
        ("mode", report.mode, _MODES[report.mode]),
    ]
    if report.optimizer:
        needed = format_bytes(report.optimizer_step_bytes)
        totals.insert(2, ("predicted optimizer step", needed, f"beside its state: {report.optimizer}"))
    blocks = [_fill(head, width), _totals(totals, width)]

    table = []
    hidden = 0
    floor = report.activation_bytes * SMALL
    for row in report.modules:
        if row.depth and row.saved_bytes <= floor:
            hidden += 1
            continue
        share = f"{row.saved_bytes / report.activation_bytes:.0%}" if report.activation_bytes else ""
        name = "  " * row.depth + (row.name or report.model)
        seconds = format_seconds(row.forward_seconds)
        table.append([name, row.class_name, str(row.calls), format_bytes(row.saved_bytes), share, seconds])
    tree = _fill(f"Saved bytes as {saved}, forward seconds as {times}", width) + "\n"
    tree += format_table(["module", "class", "calls", "saved", "share", "forward"], table, width, elide=0)
    if hidden:
        tree += "\n" + _fill(f"Left out: {_count(hidden, 'row')} of modules that save less than {SMALL:.1%}", width)
    blocks.append(tree)
    return "\n\n".join([*blocks, *_refusals(report.refused, width), *_notes(report.notes, width)]) + "\n"


def frontier_text(report: FrontierReport, *, width: int = DEFAULT_WIDTH) -> str:
    """Render a report of a frontier."""
    width = max(width, MINIMUM_WIDTH)
    least = f"{report.rows[-1].share_of_plain:.1%} of the plain peak"
    totals = [
        ("predicted plain peak", format_bytes(report.predicted_plain_peak_bytes), ""),
        ("predicted minimum", format_bytes(report.predicted_minimum_bytes), least),
        ("recorded plain step", format_seconds(report.recorded_plain_seconds), ""),
    ]
    if report.profile_mode:
        totals.append(("profile", report.profile_mode, _MODES[report.profile_mode]))
    blocks = [_fill(f"Frontier for {report.model or 'any model'}, by {report.solver}", width), _totals(totals, width)]

    columns: dict[str, list[str]] = {
        "plan": ["plain", *[""] * (len(report.rows) - 2), *["minimum"] * (len(report.rows) > 1)],
        "peak": [format_bytes(row.peak_bytes) for row in report.rows],
        "of plain": [f"{row.share_of_plain:.1%}" for row in report.rows],
        "freed": [format_bytes(row.freed_bytes) for row in report.rows],
        "recompute": [format_seconds(row.recompute_seconds) for row in report.rows],
        "of step": [f"{row.recompute_overhead:.1%}" for row in report.rows],
        "gap": ["-" if row.gap is None else f"{row.gap:.0%}" for row in report.rows],
        "segments": [str(row.segments) for row in report.rows],
        "solver": [row.solver for row in report.rows],
    }
    for name in _LEAST_TOLD:
        if sum(max(map(len, (name, *cells))) + 2 for name, cells in columns.items()) - 2 > width:
            del columns[name]
    title = "What each budget costs, as predicted; recompute: per step; of step: the recompute overhead; gap: how much "
    title += "of it any method could still save, operator by operator, the host's time not counted"
    rows = [list(cells) for cells in zip(*columns.values(), strict=True)]
    blocks.append(_fill(title, width) + "\n" + format_table(list(columns), rows, width, elide=0))
    if report.dominated_by:
        blocks.append(_fill(f"The minimum stands at {report.dominated_by}", width))
    return "\n\n".join([*blocks, *_refusals(report.refused, width), *_notes(report.notes, width)]) + "\n"


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
        fitted = [
            _shorten(cell, size) if i == elide else cell for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        aligned = [
            cell.rjust(size) if on_right else cell.ljust(size)
            for cell, size, on_right in zip(fitted, widths, right, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    lines.insert(1, "-" * min(width, max(len(line) for line in lines)))
    return "\n".join(lines)


_MODES = {
    "real": "a whole step ran",
    "forward": "forward ran; backward is predicted from the autograd graph",
    "fake": "nothing ran; memory and seconds are predicted for the device",
}


def _gap(report: PlanReport) -> str:
    if report.status == "optimal":
        return ""
    if report.choice_gap is None:
        return " (how far from the best choice is not known)"
    return f" (no other choice saves more than {report.choice_gap:.1%} of it)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _fill(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _totals(totals: Sequence[tuple[str, str, str]], width: int) -> str:
    """Lay out name, figure and remark; a remark that does not fit moves to lines of its own."""
    names = max(len(name) for name, _, _ in totals)
    figures = max(len(figure) for _, figure, _ in totals)
    lines = []
    for name, figure, remark in totals:
        line = f"{name.ljust(names)}  {figure.rjust(figures)}"
        if len(line) + 2 + len(remark) <= width:
            lines.append(f"{line}  {remark}".rstrip())
        else:
            lines += [line, _fill(remark, width, indent="    ")]
    return "\n".join(lines)


def _refusals(refused: Sequence[RefusalRow], width: int) -> list[str]:
    if not refused:
        return []
    lines = ["Kept because they cannot be replayed exactly"]
    for row in refused:
        lines.append(_fill(f"{_count(len(row.calls), 'call')}: {row.reason}", width, indent="  "))
        more = [f"and {len(row.calls) - _NAMED} more"] if len(row.calls) > _NAMED else []
        named = [label(call) for call in row.calls[:_NAMED]]
        lines.append(_fill(", ".join([*named, *more]), width, indent="    "))
    return ["\n".join(lines)]


def _notes(notes: Sequence[str], width: int) -> list[str]:
    if not notes:
        return []
    return ["\n".join(["Notes", *(_fill(note, width, indent="  ") for note in notes)])]


def _shorten(cell: str, size: int) -> str:
    """Cut the middle out of `cell` where it is longer than `size`."""
    if len(cell) <= size:
        return cell
    head = (size - 1) // 3
    return f"{cell[:head]}…{cell[len(cell) - (size - 1 - head) :]}"
