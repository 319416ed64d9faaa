"""The page of a plan: what it recomputes, frees and costs, and why."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ..._choose.candidates.from_plan import find_planned
from ..._choose.predict.timeline import predict_timeline
from ..._data.goal import Goal
from ..._data.hardware.paces import host_mode
from ..._data.offload import AS_IT_WAS, Moved
from ..._data.plan import Plan, Segment, levels_of
from ..._data.profile import Profile
from ..._data.timeline import MemoryTimeline
from ..._train.messages.kinds import LEVELS, WAITING
from ...solvers.units import format_like, format_seconds
from ..page import YELLOW, Bar, Page, PageTable, counted
from .chart import timeline_chart
from .common import MODES, budget_of, by_reason, caveats, how_timed, optimizer_step, pace, whose_host, why_one_clock
from .decisions import Activations, decide, decision_table
from .names import inner_labels, span_of_segments, unit_labels, without_layer

FIGURES = ("freed_bytes", "boundary_bytes", "kept_bytes", "cuts", "offload", "moved_bytes")
"""Fields of a segment that a row of segments takes over: they are equal in all of the row's segments."""

SAME = ("model", "solver", "status", "gap", "choice_gap", "lower_bound_seconds", "profile_mode", "host_mode", "goal")
"""Fields of a plan that its document has by the same names."""


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """Segments that look alike, with the figures of one of them; see `Segment`.

    Attributes:
        segments: how many segments.
        calls: a readable name of their calls: ``h.0 … h.2``; ``h.{0-3, 7}.mlp`` for several segments.
        calls_each: how many sibling calls each segment has.
        keep: the units that it keeps, named relative to the segment's call if it has only one.
        skip: the units that it skips, named in the same way.
        recompute_seconds: the mean over these segments, moves included.
        cuts: see `Segment`.
        inner: what inside its calls is recomputed again, each run of calls once, named relative to the call around it.
        levels: of recomputing.
        offload: see `Segment`.
        moved_bytes: the bytes that one of them moves.
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
    cuts: tuple[int, ...] = ()
    inner: tuple[str, ...] = ()
    levels: int = 1
    offload: Moved | None = None
    moved_bytes: int = 0


def plan_page(plan: Plan, profile: Profile | None = None) -> Page:
    """Lay out a plan: totals, segments, refusals; with its profile, also a chart and the decision on each call."""
    timeline = activations = None
    blocks: list[str | PageTable | Callable[[int], str]] = []
    if profile is not None:
        timeline, activations = predict_timeline(profile, plan), decide(profile, plan)
        plan = _completed(plan, profile, timeline)
        asked = budget_of(plan)
        chart = functools.partial(timeline_chart, timeline, asked=asked)
        blocks = [chart, decision_table(activations, plan.model, asked)]
    pins = (("keep", plan.pinned_keep), ("recompute", plan.pinned_recompute))
    pinned = [f"{what} [{', '.join(patterns)}]" for what, patterns in pins if patterns]
    if pinned:
        blocks.append(f"Pinned: {'; '.join(pinned)}")
    rows = list(_segment_rows(plan))
    refused = by_reason((refusal.call, refusal.reason) for refusal in plan.refused)
    made_by = "written by hand" if plan.status == "manual" else f"by {plan.solver}, {plan.status}{_gap(plan)}"
    return Page(
        title=f"Plan for {plan.model or 'any model'}, {made_by}",
        figures=list(_figures(plan, activations, profile)),
        blocks=[*blocks, *_recomputed(rows, plan), *caveats(refused, plan.notes)],
        document={
            "kind": "plan",
            **{name: getattr(plan, name) for name in SAME},
            "budget_bytes": plan.budget_bytes,
            "predicted_peak_bytes": plan.peak_bytes,
            "predicted_plain_peak_bytes": plan.plain_peak_bytes,
            "predicted_recompute_seconds": plan.recompute_seconds,
            "predicted_recompute_overhead": plan.recompute_overhead,
            "recorded_plain_seconds": plan.plain_seconds,
            "predicted_host_pace_seconds": plan.host_pace_seconds,
            "pinned_keep": plan.pinned_keep,
            "pinned_recompute": plan.pinned_recompute,
            "segments": rows,
            "timeline": timeline,
            "activations": activations,
            "refused": refused,
            "notes": plan.notes,
        },
    )


def _completed(plan: Plan, profile: Profile, timeline: MemoryTimeline) -> Plan:
    """Add the figures that a plan written by hand lacks, or a note if the plan was made from another profile."""
    if not plan.peak_bytes:  # written by hand: nothing was predicted yet
        planned = find_planned(profile, plan)
        clocks = planned.clocks(range(len(planned.replays)))
        return msgspec.structs.replace(
            plan,
            peak_bytes=timeline.peak_bytes,
            plain_peak_bytes=predict_timeline(profile, Plan()).peak_bytes,
            recompute_seconds=planned.all_seconds,
            plain_seconds=planned.plain_seconds,
            host_pace_seconds=None if clocks is None else clocks.host_pace_seconds,
            host_mode=None if clocks is None else host_mode(profile),
            profile_mode=profile.mode,
        )
    if plan.peak_bytes == timeline.peak_bytes:
        return plan
    note = (
        "the profile given is not the one that the plan was made from: in its step the plan peaks at "
        f"{format_like(timeline.peak_bytes, budget_of(plan))}, and chart and decisions are of that step"
    )
    return msgspec.structs.replace(plan, notes=(*plan.notes, note))


def _segment_rows(plan: Plan) -> Iterator[SegmentRow]:
    groups: dict[tuple[Any, ...], list[Segment]] = {}
    for segment in plan.segments:
        shown = {name: getattr(segment, name) for name in FIGURES}
        shown |= {"inner": inner_labels(segment), "levels": levels_of(segment)}
        shown |= {what: unit_labels(segment, getattr(segment, what)) for what in ("keep", "skip")}
        groups.setdefault((without_layer(segment.calls)[0], *shown.items()), []).append(segment)
    for (_, *shared), alike in groups.items():
        yield SegmentRow(
            segments=len(alike),
            calls=span_of_segments(alike),
            calls_each=len(alike[0].calls),
            recompute_seconds=sum(segment.recompute_seconds for segment in alike) / len(alike),
            **dict(shared),
        )


def _figures(plan: Plan, found: Activations | None, profile: Profile | None) -> Iterator[tuple[str, str, str]]:
    goal, budget_bytes, in_unit = plan.goal, plan.budget_bytes, functools.partial(format_like, amount=budget_of(plan))
    if goal is not None and goal.budget_bytes is None:
        overhead, budget_bytes = goal.max_overhead, None
        yield "asked for", f"{goal.budget}" if overhead is None else f"{overhead:.1%}", str(goal)
    elif budget_bytes is not None:
        yield "budget", in_unit(budget_bytes), _of_what(goal, budget_bytes)
    if plan.peak_bytes:
        share = f"{plan.peak_bytes / budget_bytes:.1%} of the budget" if budget_bytes else ""
        yield "predicted peak", in_unit(plan.peak_bytes), share
        yield "predicted plain peak", in_unit(plan.plain_peak_bytes), ""
    if profile is not None and profile.optimizer_step_bytes:
        yield from optimizer_step(profile, in_unit)
    if plan.plain_seconds:
        yield from _seconds(plan, profile)
    if plan.profile_mode:
        yield "profile", plan.profile_mode, MODES[plan.profile_mode]
    if found is not None:
        held = f"; {in_unit(found.replay_bytes)} more held for replays" if found.replay_bytes else ""
        saved = f"of {in_unit(found.saved_bytes)} saved for backward{held}"
        yield "predicted bytes freed", in_unit(found.freed_bytes), saved


def _seconds(plan: Plan, profile: Profile | None) -> Iterator[tuple[str, str, str]]:
    """Yield the rows on what a plan costs in time."""
    more = ", moves included" if plan.offload is not None else ""
    yield "predicted recompute", format_seconds(plan.recompute_seconds), f"per step{more}"
    seconds, how = format_seconds(plan.plain_seconds), how_timed(plan.profile_mode)
    yield "predicted recompute overhead", f"{plan.recompute_overhead:.1%}", f"of the plain step, {seconds} as {how}"
    if plan.host_pace_seconds is not None:
        said = f"{pace(plan)}; {whose_host(plan.host_mode is not None, profile)}"
        yield "predicted at the host's pace", format_seconds(plan.host_pace_seconds), said
    elif alone := why_one_clock(plan, profile) if profile is not None else "":
        yield "seconds", "one clock", alone
    if plan.lower_bound_seconds is not None and plan.segments:
        least = format_seconds(plan.lower_bound_seconds)
        yield "least by any method", least, "operator by operator, the host's time not counted"


def _of_what(goal: Goal | None, budget_bytes: int) -> str:
    """Say what a budget is a share of, and what was asked for where the plan leaves a margin."""
    if goal is None or goal.budget_bytes is None:
        return ""
    if budget_bytes < goal.budget_bytes:
        return f"{goal}, less a margin"
    return str(goal) if goal.total_bytes else ""


def _recomputed(rows: Sequence[SegmentRow], plan: Plan) -> Iterator[str | PageTable]:
    """Yield a table with a row for segments that look alike, and what their replays do not run again."""
    in_unit = functools.partial(format_like, amount=budget_of(plan))
    parts = plan.offload is not None and plan.offload.is_shard
    yield from _moved(rows, in_unit, parts=parts)
    rows = [row for row in rows if row.offload not in AS_IT_WAS]
    if not rows:
        yield "Recomputed: nothing, every call is kept"
        return
    segments = counted(sum(row.segments for row in rows), "segment")
    title = f"Recomputed: {segments} of {counted(sum(row.segments * row.calls_each for row in rows), 'call')} together"
    columns = _columns(rows, in_unit)
    title += "; figures of each segment, as predicted" if "freed" in columns else ""
    table = list(zip(*columns.values(), strict=True))
    yield PageTable(title=title, header=list(columns), rows=table, elide="calls")
    if "levels" in columns:
        yield LEVELS
        yield from (f"Recomputed again inside {row.calls}: {', '.join(row.inner)}" for row in rows if row.inner)
    yield from _not_again(rows, in_unit)


def _columns(rows: Sequence[SegmentRow], in_unit: Callable[[int], str]) -> dict[str, list[str | Bar]]:
    """Return what the table has on segments; of a plan by hand nothing is predicted."""
    columns: dict[str, list[str | Bar]] = {
        "segments": [str(row.segments) for row in rows],
        "calls": [row.calls for row in rows],
    }
    if any(row.freed_bytes or row.recompute_seconds for row in rows):
        most = max(row.freed_bytes for row in rows) or 1
        columns["freed"] = [Bar(in_unit(row.freed_bytes), row.freed_bytes / most, YELLOW) for row in rows]
        columns["boundary"] = [in_unit(row.boundary_bytes) for row in rows]
        columns["seconds"] = [format_seconds(row.recompute_seconds) for row in rows]
    if any(row.levels > 1 for row in rows):
        columns["levels"] = [str(row.levels) for row in rows]
    return columns


def _moved(rows: Sequence[SegmentRow], in_unit: Callable[[int], str], *, parts: bool) -> Iterator[PageTable]:
    """Yield a table with a row for segments that look alike and that move something off the device, or keep parts."""
    moved = [(row, WAITING[row.offload][0]) for row in rows if row.offload]
    if moved:
        whole = in_unit(sum(row.segments * row.moved_bytes for row, _ in moved))
        table = [[str(row.segments), row.calls, said, in_unit(row.moved_bytes)] for row, said in moved]
        done, title = "moved", f"Moved off the device: {whole} in all; bytes of each, as predicted"
        if parts:
            done = "in parts"
            title = f"Left to other ranks: {whole} in all, gathered for replays; bytes of each, as predicted"
        yield PageTable(title=title, header=["segments", "calls", done, "bytes"], rows=table, elide="calls")


def _not_again(rows: Sequence[SegmentRow], in_unit: Callable[[int], str]) -> Iterator[str]:
    """Say for each row what its replays do not run again."""
    for row in rows:
        units = [f"{what} [{', '.join(of)}]" for what, of in (("keep", row.keep), ("skip", row.skip)) if of]
        if units:
            kept = f"In {row.calls} {in_unit(row.kept_bytes)} are kept instead of being computed again"
            yield "; ".join([kept, *units])


def _gap(plan: Plan) -> str:
    if plan.status == "optimal":
        return ""
    if plan.choice_gap is None:
        return " (how far from the best choice is not known)"
    return f" (no other choice saves more than {plan.choice_gap:.1%} of it)"
