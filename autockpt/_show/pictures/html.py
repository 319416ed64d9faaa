"""What notebooks show of profiles, plans and frontiers, and of what `verify` and `max_batch` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ..._data.profile import Profile
from ...solvers.units import format_bytes, format_seconds
from ..explain.frontier import report_frontier
from ..explain.layout import how_timed
from ..explain.plan import report_plan
from ..explain.profile import SMALL, ModuleRow, how_known, report_profile
from ..explain.verification import figures as steps_of
from ..explain.verification import headline
from .markup import MOST_ROWS, YELLOW, Bar, Cell, card, table

if TYPE_CHECKING:  # they come with torch
    from ..._check.verify import Difference, Verification
    from ..._run.max_batch import MaxBatch


def profile_html(profile: Profile) -> str:
    """Return where the memory of a step goes."""
    report = report_profile(profile)
    peak, saved, times = how_known(report)
    figures = [
        (f"{peak} plain peak", format_bytes(report.plain_peak_bytes)),
        ("of it static", format_bytes(sum(report.static_bytes.values()))),
        (f"{saved} activations", format_bytes(report.activation_bytes)),
        (f"{times} plain step", format_seconds(report.plain_seconds)),
    ]
    whole = report.activation_bytes or 1
    rows: list[list[Cell]] = [
        [
            "\u2003" * row.depth + (row.name or report.model),
            row.class_name,
            str(row.calls),
            Bar(format_bytes(row.saved_bytes), row.saved_bytes / whole),
            format_seconds(row.forward_seconds),
        ]
        for row in _with_room([row for row in report.modules if not row.depth or row.saved_bytes > SMALL * whole])
    ]
    below = f"{report.device}, torch {report.torch_version}, {report.recorded}"
    header = ["module", "class", "calls", "saved", "forward"]
    return card(f"Profile of {report.model}", below, figures, table(header, rows, left=("module", "class")))


def _with_room(rows: list[ModuleRow]) -> list[ModuleRow]:
    """Return as many levels of a tree as there is room for, at least the root and what it calls."""
    depth = max(row.depth for row in rows)
    while depth > 1 and len(rows) > MOST_ROWS:
        depth -= 1
        rows = [row for row in rows if row.depth <= depth]
    return rows


def plan_html(plan: Plan) -> str:
    """Return what a plan recomputes, frees and costs."""
    report = report_plan(plan)
    figures = []
    if report.budget_bytes is not None and not (report.goal and report.goal.budget_bytes is None):
        figures.append(("budget", format_bytes(report.budget_bytes)))
    if report.predicted_peak_bytes:
        figures.append(("predicted peak", format_bytes(report.predicted_peak_bytes)))
        figures.append(("predicted plain peak", format_bytes(report.predicted_plain_peak_bytes)))
    if report.recorded_plain_seconds:
        figures.append(("predicted recompute", format_seconds(report.predicted_recompute_seconds)))
        figures.append(("predicted recompute overhead", f"{report.predicted_recompute_overhead:.1%}"))
    recomputed = "<p>Recomputed: nothing, every call is kept</p>"
    if report.segments:
        most = max(row.freed_bytes for row in report.segments) or 1
        rows: list[list[Cell]] = [
            [
                str(row.segments),
                row.calls,
                Bar(format_bytes(row.freed_bytes), row.freed_bytes / most, YELLOW),
                format_bytes(row.boundary_bytes),
                format_seconds(row.recompute_seconds),
                _units(row.keep, row.skip),
            ]
            for row in report.segments
        ]
        header = ["segments", "recomputed", "freed by each", "boundary", "seconds", "but not"]
        if not any(row.keep or row.skip for row in report.segments):
            header, rows = header[:-1], [row[:-1] for row in rows]
        recomputed = table(header, rows, left=("recomputed", "but not"))
    made_by = "written by hand" if report.status == "manual" else f"by {report.solver}, {report.status}"
    return card(f"Plan for {report.model or 'any model'}", made_by, figures, recomputed)


def frontier_html(frontier: Frontier) -> str:
    """Return what each budget costs."""
    report = report_frontier(frontier)
    figures = [
        ("predicted plain peak", format_bytes(report.predicted_plain_peak_bytes)),
        ("predicted minimum", format_bytes(report.predicted_minimum_bytes)),
        (f"{how_timed(report.profile_mode)} plain step", format_seconds(report.recorded_plain_seconds)),
    ]
    most = max(row.recompute_overhead for row in report.rows) or 1
    rows: list[list[Cell]] = [
        [
            Bar(format_bytes(row.peak_bytes), row.share_of_plain),
            f"{row.share_of_plain:.1%}",
            Bar(f"{row.recompute_overhead:.1%}", row.recompute_overhead / most, YELLOW),
            format_seconds(row.recompute_seconds),
            "-" if row.gap is None else f"{row.gap:.0%}",
            str(row.segments),
            row.solver,
        ]
        for row in report.rows
    ]
    header = ["predicted peak", "of plain", "recompute overhead", "recompute", "gap", "segments", "solver"]
    if all(row.gap is None for row in report.rows[1:]):  # of the plain plan it is no news
        at = header.index("gap")
        header, rows = [*header[:at], *header[at + 1 :]], [[*row[:at], *row[at + 1 :]] for row in rows]
    return card(
        f"Frontier for {report.model or 'any model'}",
        f"by {report.solver}",
        figures,
        table(header, rows, left=("solver",)),
    )


def verification_html(found: Verification) -> str:
    """Return the verdict of a verification, and what differs."""
    compared = sum(found.compared.values())
    figures = [
        ("verdict", found.verdict),
        ("tensors compared", f"{compared:,}"),
        ("segments", str(found.segments)),
        ("replays", str(found.replays)),
        ("plain runs", f"{found.plain_runs}, {'all the same' if found.repeatable else 'not the same'}"),
    ]
    steps: list[list[Cell]] = [list(row) for row in steps_of(found)]
    tables = [table(["", "plain", "planned"], steps, left=("",))] if steps else []
    tables += [
        f"<p>{title}</p>" + _differences(differences)
        for title, differences in (
            ("Replays against their forwards", found.wrong_replays),
            ("Planned against plain", found.differences),
            ("Plain against plain", found.plain_differences),
        )
        if differences
    ]
    return card(headline(found), f"{found.device}, torch {found.torch_version}", figures, *tables)


def _differences(differences: Sequence[Difference]) -> str:
    rows: list[list[Cell]] = [
        [
            str(each.step),
            f"{each.kind} {each.name}" + (f": {each.what}" if each.what else ""),
            f"{each.different_elements:,} of {each.elements:,}" if each.elements else "-",
            "-" if each.largest_difference is None else f"{each.largest_difference:.3g}",
        ]
        for each in differences
    ]
    return table(["step", "what", "elements", "largest"], rows, left=("what",))


def max_batch_html(found: MaxBatch) -> str:
    """Return the largest batch, and how many samples a second go through at several sizes."""
    figures = [
        ("largest batch", f"{found.batch_size} samples"),
        ("without recomputing", f"{found.plain_batch_size} samples"),
        ("most samples a second", f"{found.best.batch_size} samples"),
    ]
    most = max(each.samples_per_second for each in found.throughputs) or 1
    rows: list[list[Cell]] = [
        [
            str(each.batch_size),
            format_bytes(each.plan.peak_bytes),
            format_seconds(each.step_seconds),
            f"{each.plan.recompute_overhead:.1%}",
            Bar(f"{each.samples_per_second:.4g}", each.samples_per_second / most),
            "best" if each is found.best else "",
        ]
        for each in found.throughputs
    ]
    header = ["samples", "peak", "step", "recompute overhead", "samples/s", ""]
    budget = f"within {format_bytes(found.plan.budget_bytes or 0)}; figures are predicted"
    return card("Largest batch", budget, figures, table(header, rows, left=("",)))


def _units(keep: Sequence[str], skip: Sequence[str]) -> str:
    """Name what a replay does not run again, as far as there is room."""
    named = [*keep, *skip]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")
