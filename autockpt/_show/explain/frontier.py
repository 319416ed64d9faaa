"""The page of a frontier: what each budget costs."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..._data.frontier import Frontier
from ...solvers.units import format_bytes, format_seconds
from .layout import (
    DEFAULT_WIDTH,
    MINIMUM_WIDTH,
    MODES,
    drop_columns,
    fill,
    format_notes,
    format_table,
    format_totals,
    how_timed,
)
from .plan import report_plan
from .refusals import RefusalRow, format_refusals

_LEAST_TOLD = ("freed", "solver", "segments")


class FrontierRow(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of a frontier. Figures are predicted.

    Attributes:
        peak_bytes: peak of the whole step, the least budget that the plan fits.
        share_of_plain: of the plain peak, a ratio.
        freed_bytes: how far it is below the plain peak.
        recompute_seconds: per step.
        recompute_overhead: of the plain step's seconds, a ratio.
        gap: no method could save more than this share of the cost; None if no bound is known.
        segments: how many.
        solver: who chose.
        status: ``optimal`` or ``feasible``.
    """

    peak_bytes: int
    share_of_plain: float
    freed_bytes: int
    recompute_seconds: float
    recompute_overhead: float
    gap: float | None
    segments: int
    solver: str
    status: str


class FrontierReport(msgspec.Struct, frozen=True, kw_only=True):
    """What each budget costs, from the plain peak to the minimum."""

    kind: Literal["frontier"] = "frontier"
    model: str
    solver: str
    profile_mode: str | None
    predicted_plain_peak_bytes: int
    predicted_minimum_bytes: int
    dominated_by: str
    recorded_plain_seconds: float
    rows: tuple[FrontierRow, ...]
    refused: tuple[RefusalRow, ...]
    notes: tuple[str, ...]


def report_frontier(frontier: Frontier) -> FrontierReport:
    """Summarise `frontier`: a row for each plan, and what is the same for all of them."""
    plain = report_plan(frontier.plans[0])
    plain_bytes = frontier.plain_peak_bytes
    return FrontierReport(
        model=frontier.model,
        solver=frontier.solver,
        profile_mode=plain.profile_mode,
        predicted_plain_peak_bytes=plain_bytes,
        predicted_minimum_bytes=frontier.minimum_bytes,
        dominated_by=frontier.dominated_by,
        recorded_plain_seconds=plain.recorded_plain_seconds,
        rows=tuple(
            FrontierRow(
                peak_bytes=plan.peak_bytes,
                share_of_plain=plan.peak_bytes / plain_bytes if plain_bytes else 1.0,
                freed_bytes=plain_bytes - plan.peak_bytes,
                recompute_seconds=plan.recompute_seconds,
                recompute_overhead=plan.recompute_overhead,
                gap=plan.gap,
                segments=len(plan.segments),
                solver=plan.solver,
                status=plan.status,
            )
            for plan in frontier.plans
        ),
        refused=plain.refused,
        notes=tuple(dict.fromkeys(note for plan in frontier.plans for note in plan.notes)),
    )


def frontier_text(report: FrontierReport, *, width: int = DEFAULT_WIDTH) -> str:
    """Render a report of a frontier."""
    width = max(width, MINIMUM_WIDTH)
    least = f"{report.rows[-1].share_of_plain:.1%} of the plain peak"
    totals = [
        ("predicted plain peak", format_bytes(report.predicted_plain_peak_bytes), ""),
        ("predicted minimum", format_bytes(report.predicted_minimum_bytes), least),
        (f"{how_timed(report.profile_mode)} plain step", format_seconds(report.recorded_plain_seconds), ""),
    ]
    if report.profile_mode:
        totals.append(("profile", report.profile_mode, MODES[report.profile_mode]))
    blocks = [
        fill(f"Frontier for {report.model or 'any model'}, by {report.solver}", width),
        format_totals(totals, width),
    ]

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
    title = "What each budget costs, as predicted; recompute: per step; of step: the recompute overhead"
    if all(row.gap is None for row in report.rows[1:]):
        del columns["gap"]  # of the plain plan it is no news
    else:
        title += "; gap: how much of it any method could still save, operator by operator, the host's time not counted"
    drop_columns(columns, _LEAST_TOLD, width)
    rows = [list(cells) for cells in zip(*columns.values(), strict=True)]
    blocks.append(fill(title, width) + "\n" + format_table(list(columns), rows, width, elide=0))
    if report.dominated_by:
        blocks.append(fill(f"The minimum stands at {report.dominated_by}", width))
    return "\n\n".join([*blocks, *format_refusals(report.refused, width), *format_notes(report.notes, width)]) + "\n"
