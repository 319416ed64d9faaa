"""What a frontier says, as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

from .._frontier import Frontier
from .reports import RefusalRow, report_plan

__all__ = ["FrontierReport", "FrontierRow", "report_frontier"]


class FrontierRow(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of a frontier. Figures are predicted.

    Attributes:
        peak_bytes: peak of the whole step, the least budget that the plan fits.
        share_of_plain: of the plain peak, a ratio.
        freed_bytes: how far it is below the plain peak.
        recompute_seconds: per step.
        recompute_overhead: of the plain step's seconds, a ratio.
        gap: how much any method could still save, a ratio; None if no bound is known.
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
