"""The page of a frontier: what each budget costs."""

from __future__ import annotations

from ..._data.frontier import Frontier
from ...solvers.units import format_bytes, format_seconds
from ..page import YELLOW, Bar, Page, PageTable
from .common import MODES, by_reason, caveats, how_timed, pace, rate, whose_host


def frontier_page(frontier: Frontier) -> Page:
    """Lay out a frontier: a row for each plan, and what all plans have in common."""
    plain, lowest = frontier.plans[0], frontier.plans[-1]
    refused = by_reason((refusal.call, refusal.reason) for refusal in plain.refused)
    notes = tuple(dict.fromkeys(note for plan in frontier.plans for note in plan.notes))
    least = f'{_share(lowest.peak_bytes, frontier):.1%} of the plain peak, at one level; "lowest" may go below it'
    figures = [
        ("predicted plain peak", format_bytes(frontier.plain_peak_bytes), ""),
        ("predicted minimum", format_bytes(frontier.minimum_bytes), least),
        (f"{how_timed(plain.profile_mode)} plain step", format_seconds(plain.plain_seconds), ""),
    ]
    if lowest.host_pace_seconds is not None:
        host = format_seconds(lowest.host_pace_seconds)
        said = f"at the minimum {pace(lowest)}; {whose_host(lowest.host_mode is not None)}"
        figures.append(("predicted at the host's pace", host, said))
    if plain.profile_mode:
        figures.append(("profile", plain.profile_mode, MODES[plain.profile_mode]))
    where = [f"The minimum stands at {frontier.dominated_by}"] if frontier.dominated_by else []
    return Page(
        title=f"Frontier for {frontier.model or 'any model'}, by {frontier.solver}",
        figures=figures,
        blocks=[_table(frontier), *where, *caveats(refused, notes)],
        document={
            "kind": "frontier",
            "model": frontier.model,
            "solver": frontier.solver,
            "profile_mode": plain.profile_mode,
            "predicted_plain_peak_bytes": frontier.plain_peak_bytes,
            "predicted_minimum_bytes": frontier.minimum_bytes,
            "dominated_by": frontier.dominated_by,
            "recorded_plain_seconds": plain.plain_seconds,
            "rows": _rows(frontier),
            "refused": refused,
            "notes": notes,
        },
    )


def _share(peak_bytes: int, frontier: Frontier) -> float:
    return peak_bytes / frontier.plain_peak_bytes if frontier.plain_peak_bytes else 1.0


def _rows(frontier: Frontier) -> list[dict[str, object]]:
    """The plans as JSON has them. Figures are predicted; shares, overheads and gaps are ratios."""
    return [
        {
            "peak_bytes": plan.peak_bytes,
            "share_of_plain": _share(plan.peak_bytes, frontier),
            "freed_bytes": frontier.plain_peak_bytes - plan.peak_bytes,
            "recompute_seconds": plan.recompute_seconds,
            "recompute_overhead": plan.recompute_overhead,
            "samples_per_second": frontier.samples_per_second(plan),
            "host_pace_seconds": plan.host_pace_seconds,
            "host_mode": plan.host_mode,
            "gap": plan.gap,
            "segments": len(plan.segments),
            "solver": plan.solver,
            "status": plan.status,
        }
        for plan in frontier.plans
    ]


def _rates(frontier: Frontier) -> dict[str, list[str | Bar]]:
    """Return the column of samples a second; none where they are not known."""
    if frontier.samples_per_second(frontier.plans[0]) is None:
        return {}
    rates: list[str | Bar] = [rate(frontier, plan) for plan in frontier.plans]
    return {"samples/s": rates}


def _table(frontier: Frontier) -> PageTable:
    plans = frontier.plans
    shares = [_share(plan.peak_bytes, frontier) for plan in plans]
    dearest = max(plan.recompute_overhead for plan in plans) or 1
    rates = _rates(frontier)
    names: list[str | Bar] = ["plain", *[""] * (len(plans) - 2), "minimum"]
    columns: dict[str, list[str | Bar]] = {
        "plan": names[: len(plans)],
        "peak": [Bar(format_bytes(plan.peak_bytes), share) for plan, share in zip(plans, shares, strict=True)],
        "of plain": [f"{share:.1%}" for share in shares],
        "freed": [format_bytes(frontier.plain_peak_bytes - plan.peak_bytes) for plan in plans],
        "recompute": [format_seconds(plan.recompute_seconds) for plan in plans],
        "of step": [Bar(f"{plan.recompute_overhead:.1%}", plan.recompute_overhead / dearest, YELLOW) for plan in plans],
        **rates,
        "gap": ["-" if plan.gap is None else f"{plan.gap:.0%}" for plan in plans],
        "segments": [str(len(plan.segments)) for plan in plans],
        "solver": [plan.solver for plan in plans],
    }
    title = "What each budget costs, as predicted; recompute: per step; of step: the recompute overhead"
    if all(plan.gap is None for plan in plans[1:]):
        del columns["gap"]  # only the plain plan has one, which says nothing
    else:
        title += "; gap: how much of it any method could still save, operator by operator, the host's time not counted"
    return PageTable(
        title=title,
        header=list(columns),
        rows=list(zip(*columns.values(), strict=True)),
        least_told=("freed", "solver", "segments", *rates),
    )
