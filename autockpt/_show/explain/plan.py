"""The page of a plan: what it recomputes, frees and costs, and why."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..._choose.timeline import predict_timeline
from ..._data.goal import Goal
from ..._data.plan import Plan, Segment
from ..._data.profile import Profile
from ..._data.timeline import MemoryTimeline
from ...solvers.units import format_bytes, format_seconds
from .chart import timeline_chart
from .decisions import Activations, DecisionRow, decide
from .layout import (
    DEFAULT_WIDTH,
    MINIMUM_WIDTH,
    MODES,
    counted,
    fill,
    format_notes,
    format_table,
    format_totals,
    how_timed,
)
from .names import span_of_segments, unit_labels, without_layer
from .reasons import REASONS
from .refusals import RefusalRow, by_reason, format_refusals

_LEAST_NAME = 16  # columns for names of modules; with fewer the decisions go below the rows


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """Segments that look alike. Figures are predicted, and those of one segment.

    Attributes:
        segments: how many.
        calls: for people: ``h.0 … h.2``; ``h.{0-3, 7}.mlp`` for several.
        calls_each: sibling calls in one segment.
        freed_bytes: activations that recomputing the segment drops.
        boundary_bytes: what must stay alive for it.
        kept_bytes: what the units that are not run again leave alive besides.
        keep: those of them whose results the replay reads, named from the segment's call on where it is one.
        skip: the others.
        recompute_seconds: mean over these segments.
    """

    segments: int
    calls: str
    calls_each: int
    freed_bytes: int
    boundary_bytes: int
    kept_bytes: int
    keep: tuple[str, ...]
    skip: tuple[str, ...]
    recompute_seconds: float


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan does and what it is predicted to cost; the last but two where its profile is at hand."""

    kind: Literal["plan"] = "plan"
    model: str
    solver: str
    status: str
    gap: float | None
    choice_gap: float | None
    lower_bound_seconds: float | None
    profile_mode: str | None
    goal: Goal | None
    budget_bytes: int | None
    predicted_peak_bytes: int
    predicted_plain_peak_bytes: int
    predicted_recompute_seconds: float
    predicted_recompute_overhead: float
    recorded_plain_seconds: float
    pinned_keep: tuple[str, ...]
    pinned_recompute: tuple[str, ...]
    segments: tuple[SegmentRow, ...]
    timeline: MemoryTimeline | None
    activations: Activations | None
    refused: tuple[RefusalRow, ...]
    notes: tuple[str, ...]


def report_plan(plan: Plan, profile: Profile | None = None) -> PlanReport:
    """Summarise `plan`: totals, rows of segments that look alike, refusals; with its profile timeline and decisions."""
    timeline = None if profile is None else predict_timeline(profile, plan)
    activations = None if profile is None else decide(profile, plan)
    notes = plan.notes
    if profile is not None and timeline is not None and activations is not None:
        if not plan.peak_bytes:  # written by hand: nothing was predicted yet
            plan = msgspec.structs.replace(
                plan,
                peak_bytes=timeline.peak_bytes,
                plain_peak_bytes=predict_timeline(profile, Plan()).peak_bytes,
                recompute_seconds=activations.rows[0].recompute_seconds,
                plain_seconds=profile.plain_seconds,
                profile_mode=profile.mode,
            )
        elif plan.peak_bytes != timeline.peak_bytes:
            notes += (
                "the profile given is not the one that the plan was made from: in its step the plan peaks at "
                f"{format_bytes(timeline.peak_bytes)}, and chart and decisions are of that step",
            )
    groups: dict[tuple[object, ...], list[Segment]] = {}
    for segment in plan.segments:
        calls, _ = without_layer(segment.calls)
        sizes = segment.freed_bytes, segment.boundary_bytes, segment.kept_bytes
        units = (unit_labels(segment, keys) for keys in (segment.keep, segment.skip))
        groups.setdefault((calls, *sizes, *units), []).append(segment)
    rows = [
        SegmentRow(
            segments=len(alike),
            calls=span_of_segments(alike),
            calls_each=len(alike[0].calls),
            freed_bytes=alike[0].freed_bytes,
            boundary_bytes=alike[0].boundary_bytes,
            kept_bytes=alike[0].kept_bytes,
            keep=unit_labels(alike[0], alike[0].keep),
            skip=unit_labels(alike[0], alike[0].skip),
            recompute_seconds=sum(segment.recompute_seconds for segment in alike) / len(alike),
        )
        for alike in groups.values()
    ]
    return PlanReport(
        model=plan.model,
        solver=plan.solver,
        status=plan.status,
        gap=plan.gap,
        choice_gap=plan.choice_gap,
        lower_bound_seconds=plan.lower_bound_seconds,
        profile_mode=plan.profile_mode,
        goal=plan.goal,
        budget_bytes=plan.budget_bytes,
        predicted_peak_bytes=plan.peak_bytes,
        predicted_plain_peak_bytes=plan.plain_peak_bytes,
        predicted_recompute_seconds=plan.recompute_seconds,
        predicted_recompute_overhead=plan.recompute_overhead,
        recorded_plain_seconds=plan.plain_seconds,
        pinned_keep=plan.pinned_keep,
        pinned_recompute=plan.pinned_recompute,
        segments=tuple(rows),
        timeline=timeline,
        activations=activations,
        refused=by_reason((refusal.call, refusal.reason) for refusal in plan.refused),
        notes=notes,
    )


def plan_text(report: PlanReport, *, width: int = DEFAULT_WIDTH) -> str:
    """Render a report of a plan."""
    width = max(width, MINIMUM_WIDTH)
    made_by = "written by hand" if report.status == "manual" else f"by {report.solver}, {report.status}{_gap(report)}"
    blocks = [fill(f"Plan for {report.model or 'any model'}, {made_by}", width)]

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
        seconds, how = format_seconds(report.recorded_plain_seconds), how_timed(report.profile_mode)
        plain = f"of the plain step, {seconds} as {how}"
        totals.append(("predicted recompute overhead", f"{report.predicted_recompute_overhead:.1%}", plain))
        if report.lower_bound_seconds is not None and report.segments:
            least = format_seconds(report.lower_bound_seconds)
            totals.append(("least by any method", least, "operator by operator, the host's time not counted"))
    if report.profile_mode:
        totals.append(("profile", report.profile_mode, MODES[report.profile_mode]))
    if report.activations is not None:
        freed = format_bytes(report.activations.freed_bytes)
        totals.append(("predicted bytes freed", freed, _of_activations(report.activations)))
    if totals:
        blocks.append(format_totals(totals, width))
    if report.timeline is not None:
        blocks.append(timeline_chart(report.timeline, width=width))
    if report.activations is not None:
        blocks.append(_tree(report.activations, report.model, width))
    pins = (("keep", report.pinned_keep), ("recompute", report.pinned_recompute))
    pinned = [f"{what} [{', '.join(patterns)}]" for what, patterns in pins if patterns]
    if pinned:
        blocks.append(fill(f"Pinned: {'; '.join(pinned)}", width))

    if report.segments:
        count = sum(row.segments for row in report.segments)
        calls = sum(row.segments * row.calls_each for row in report.segments)
        title = f"Recomputed: {counted(count, 'segment')} of {counted(calls, 'call')} together"
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
        blocks.append(fill(title, width) + "\n" + format_table(header, table, width, elide=1))
        for row in report.segments:
            if row.keep or row.skip:
                blocks.append(_selective(row, width))
    else:
        blocks.append("Recomputed: nothing, every call is kept")
    return "\n\n".join([*blocks, *format_refusals(report.refused, width), *format_notes(report.notes, width)]) + "\n"


def _of_activations(activations: Activations) -> str:
    """Say what freed bytes are a part of, and what is held instead."""
    said = f"of {format_bytes(activations.saved_bytes)} saved for backward"
    return said + (f"; {format_bytes(activations.replay_bytes)} more held for replays" * bool(activations.replay_bytes))


def _tree(activations: Activations, model: str, width: int) -> str:
    """Lay out the module tree with what is decided; what was decided goes below a row where there is no room."""
    rows = activations.rows
    table = [
        [
            "  " * row.depth + (row.name or model),
            format_bytes(row.held_bytes),
            format_bytes(row.freed_bytes),
            format_seconds(row.recompute_seconds) if row.recompute_seconds else "-",
        ]
        for row in rows
    ]
    header = ["module", "held", "freed", "recompute"]
    decided = [_decided(row) for row in rows]
    room = max(len("decision"), *(len(line) for lines in decided for line in lines)) + 2
    names, *figures = (max(map(len, column)) for column in zip(header, *table, strict=True))
    beside = min(names, _LEAST_NAME) + sum(figure + 2 for figure in figures) <= width - room
    lines = format_table(header, table, width - room if beside else width, elide=0).splitlines()
    if beside:
        across = max(map(len, lines)) + 2
        laid = [f"{lines[0].ljust(across)}decision", "-" * (across + room - 2)]
        for line, said in zip(lines[2:], decided, strict=True):
            laid.append(f"{line.ljust(across)}{said[0]}")
            laid += [f"{'':{across}}{more}" for more in said[1:]]
    else:
        laid = lines[:2]
        for row, line, said in zip(rows, lines[2:], decided, strict=True):
            laid += [line, *(f"{'  ' * row.depth}    {each}" for each in said)]
    text = "\n".join([fill("Decisions, figures as predicted; recompute: of the segments in a row", width), *laid])
    if activations.small_rows:
        text += "\n" + fill(f"Left out: {counted(activations.small_rows, 'row')} that save next to nothing", width)
    reasons = dict.fromkeys(each.reason for row in rows for each in row.decided if each.reason)
    return "\n".join([text, *(fill(f"{reason}: {REASONS[reason]}", width, indent="  ") for reason in reasons)])


def _decided(row: DecisionRow) -> list[str]:
    """Say what is decided about the calls of a row: a line for each decision and reason."""
    lines = []
    for each in row.decided:
        number = "all" if each.calls == row.calls else f"{each.calls} of"
        said = each.decision if row.calls == 1 else f"{number} {row.calls} {each.decision}"
        lines.append(f"{said}, {each.reason}" if each.reason else said)
    return lines


def _selective(row: SegmentRow, width: int) -> str:
    """Say what a replay does not run again."""
    said = [f"In {row.calls} {format_bytes(row.kept_bytes)} are kept instead of being computed again"]
    for what, units in (("keep", row.keep), ("skip", row.skip)):
        if units:
            said.append(f"{what} [{', '.join(units)}]")
    return fill("; ".join(said), width)


def _gap(report: PlanReport) -> str:
    if report.status == "optimal":
        return ""
    if report.choice_gap is None:
        return " (how far from the best choice is not known)"
    return f" (no other choice saves more than {report.choice_gap:.1%} of it)"
