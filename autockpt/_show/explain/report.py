"""The page of a report: how a model has kept to its budget so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..._data.plan import CompiledPlan
from ..._data.text.keys import label
from ..._train.messages.spoken import BESIDE_OWN
from ...solvers.units import format_bytes, format_seconds
from ..page import Page, counted

if TYPE_CHECKING:  # it comes with torch
    from ..._train.messages.report import Report

MOST_NAMED = 3

SO_FAR, UNMEASURED = "so far, by the device's allocator", "this device's allocator keeps no statistics"


def report_page(found: Report) -> Page:
    """Lay out what was asked, predicted and measured, in about ten lines."""
    title = f"{found.model}: {found.asked or 'a plan was applied'}"
    return Page(title=title, figures=list(_figures(found)), blocks=[*_recomputed(found), *_plans(found)])


def _figures(found: Report) -> Iterator[tuple[str, str, str]]:
    def written(n_bytes: int) -> str:
        return format_bytes(n_bytes, decimal=found.decimal)

    plan = found.plan
    if plan is None:
        yield "plan", "none yet", "two steps are recorded and timed before it"
        return
    plain = f"plain {written(plan.plain_peak_bytes)}" if plan.peak_bytes else ""
    yield "predicted peak", written(plan.peak_bytes) if plan.peak_bytes else "-", plain
    peak_bytes = found.measured_peak_bytes
    yield "measured peak", *((written(peak_bytes), SO_FAR) if peak_bytes is not None else ("-", UNMEASURED))
    if isinstance(plan, CompiledPlan):
        yield "of forward", f"{plan.share:.1%}", "runs again, by a roofline"
    elif plan.plain_seconds:
        of = f"of the plain forward and backward, {format_seconds(plan.plain_seconds)}"
        yield "predicted overhead", f"{plan.recompute_overhead:.1%}", of
    if isinstance(plan, CompiledPlan):
        tried = ", then ".join(map(written, plan.tried_bytes))
        said = f"peaks of the first step in the code that was generated for the plans tried: {tried}"
        yield "plans tried", str(max(len(plan.tried_bytes), 1)), said if tried else "its graphs alone say what is held"
        yield "steps", str(found.steps), "began under a plan"
        return
    seconds = "-" if found.step_seconds is None else format_seconds(found.step_seconds)
    yield "measured step", seconds, f"of your loop, the median; {counted(found.steps, 'step')} ran under a plan"
    faults = f"kept since a replay differed: {_named(found)}" if found.refused else "each segment, at its first replay"
    yield "checks", f"{len(found.refused)} failed" if found.refused else "passed" if found.steps else "-", faults


def _recomputed(found: Report) -> Iterator[str]:
    own = found.plan.own_replays if found.plan is not None else None
    yield f"Recomputed: {found.recomputes}{f' {BESIDE_OWN}' if own else ''}"
    yield from filter(None, [own])


def _named(found: Report) -> str:
    names = [label(call) for call, _ in found.refused]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _plans(found: Report) -> Iterator[str]:
    if not found.plans:
        return
    last = found.plans[-1]
    again = f", the last since {last.reason}" if len(found.plans) > 1 else f": {last.reason}"
    yield f"{counted(len(found.plans), 'plan')} made{again}"
