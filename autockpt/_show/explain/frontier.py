"""The page of a frontier: what each budget costs."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..._data.frontier import Frontier
from ...solvers.units import format_bytes, format_seconds
from ..page import YELLOW, Bar, Page, Table
from .common import MODES, RefusalRow, by_reason, caveats, how_timed


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
    plain, plain_bytes = frontier.plans[0], frontier.plain_peak_bytes
    rows = [
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
    ]
    return FrontierReport(
        model=frontier.model,
        solver=frontier.solver,
        profile_mode=plain.profile_mode,
        predicted_plain_peak_bytes=plain_bytes,
        predicted_minimum_bytes=frontier.minimum_bytes,
        dominated_by=frontier.dominated_by,
        recorded_plain_seconds=plain.plain_seconds,
        rows=tuple(rows),
        refused=by_reason((refusal.call, refusal.reason) for refusal in plain.refused),
        notes=tuple(dict.fromkeys(note for plan in frontier.plans for note in plan.notes)),
    )


def frontier_page(report: FrontierReport) -> Page:
    """Lay out a report of a frontier."""
    least = f"{report.rows[-1].share_of_plain:.1%} of the plain peak"
    figures = [
        ("predicted plain peak", format_bytes(report.predicted_plain_peak_bytes), ""),
        ("predicted minimum", format_bytes(report.predicted_minimum_bytes), least),
        (f"{how_timed(report.profile_mode)} plain step", format_seconds(report.recorded_plain_seconds), ""),
    ]
    if report.profile_mode:
        figures.append(("profile", report.profile_mode, MODES[report.profile_mode]))
    blocks: list[str | Table] = [_table(report.rows)]
    if report.dominated_by:
        blocks.append(f"The minimum stands at {report.dominated_by}")
    return Page(
        title=f"Frontier for {report.model or 'any model'}, by {report.solver}",
        figures=figures,
        blocks=[*blocks, *caveats(report.refused, report.notes)],
    )


def _table(rows: tuple[FrontierRow, ...]) -> Table:
    dearest = max(row.recompute_overhead for row in rows) or 1
    last = len(rows) - 1
    columns: dict[str, list[str | Bar]] = {
        "plan": ["plain" if i == 0 else "minimum" if i == last else "" for i in range(len(rows))],
        "peak": [Bar(format_bytes(row.peak_bytes), row.share_of_plain) for row in rows],
        "of plain": [f"{row.share_of_plain:.1%}" for row in rows],
        "freed": [format_bytes(row.freed_bytes) for row in rows],
        "recompute": [format_seconds(row.recompute_seconds) for row in rows],
        "of step": [Bar(f"{row.recompute_overhead:.1%}", row.recompute_overhead / dearest, YELLOW) for row in rows],
        "gap": ["-" if row.gap is None else f"{row.gap:.0%}" for row in rows],
        "segments": [str(row.segments) for row in rows],
        "solver": [row.solver for row in rows],
    }
    title = "What each budget costs, as predicted; recompute: per step; of step: the recompute overhead"
    if all(row.gap is None for row in rows[1:]):
        del columns["gap"]  # of the plain plan it is no news
    else:
        title += "; gap: how much of it any method could still save, operator by operator, the host's time not counted"
    return Table(
        title=title,
        header=list(columns),
        rows=list(zip(*columns.values(), strict=True)),
        least_told=("freed", "solver", "segments"),
    )
