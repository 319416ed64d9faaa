"""The page of a report: how a model has kept to its budget so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..._data.compiled_plan import CompiledPlan
from ..._data.text.keys import label
from ..._train.messages.spoken import BESIDE_OWN
from ...solvers.units import format_bytes, format_seconds
from ..page import Page, counted

if TYPE_CHECKING:  # it comes with torch
    from ..._train.messages.report import Report

MOST_NAMED = 3

COMPILED = "; steps inside compiled code are not counted"

COMES = "two steps are recorded and timed before it"

SO_FAR = "so far, by the device's allocator"
UNMEASURED, NOT_YET = "this device's allocator keeps no statistics", "no step ran under the plan yet"


def report_page(found: Report) -> Page:
    """Lay out what was asked, predicted and measured, in about ten lines."""
    title = f"{found.model}: {found.asked or 'a plan was applied'}"
    blocks = [*_recomputed(found), *_plans(found), *([found.unplanned] if found.plan is not None else [])]
    return Page(title=title, figures=list(_figures(found)), blocks=blocks)


def _figures(found: Report) -> Iterator[tuple[str, str, str]]:
    def written(n_bytes: int) -> str:
        return format_bytes(n_bytes, decimal=found.decimal)

    plan = found.plan
    if plan is None:
        yield "plan", *(("none", found.unplanned) if found.unplanned else ("none yet", _waits_for(found)))
        return
    plain = f"plain {written(plan.plain_peak_bytes)}" if plan.peak_bytes else ""
    batch = "" if found.asked or not plain else ", for the batch that the plan was made for"
    yield "predicted peak", written(plan.peak_bytes) if plan.peak_bytes else "-", f"{plain}{batch}"
    not_yet = NOT_YET if found.asked else f"{NOT_YET}{COMPILED}"
    peak_bytes, none = found.measured_peak_bytes, UNMEASURED if found.steps else not_yet
    yield "measured peak", *((written(peak_bytes), SO_FAR) if peak_bytes is not None else ("-", none))
    if isinstance(plan, CompiledPlan):
        yield "of forward", f"{plan.share:.1%}", "runs again, by a roofline"
        tried = ", then ".join(map(written, plan.tried_bytes))
        said = f"peaks of the first step in the code that was generated for the plans tried: {tried}"
        yield "plans tried", str(max(len(plan.tried_bytes), 1)), said if tried else "its graphs alone say what is held"
        yield "steps", str(found.steps), "began under a plan"
        return
    seconds = "-" if found.step_seconds is None else format_seconds(found.step_seconds)
    yield "measured step", seconds, f"of your loop, the median; {counted(found.steps, 'step')} ran under a plan"
    if found.slower is not None:
        plain = f"of a plain forward and backward of {format_seconds(plan.plain_seconds)}"
        of = "of that step without it" if found.timed else plain
        yield "slower", f"{found.slower:.1%}", f"predicted: {format_seconds(plan.recompute_seconds)} run again, {of}"
    yield "checks", *_checks(found)


def _waits_for(found: Report) -> str:
    """Return what has to come before there is a plan."""
    if found.delayed:
        return f"{COMES}, and the last one could not be: {found.delayed}"
    if found.untrained:
        ran = f"{counted(found.untrained, 'forward')} ran so far, and no gradient was asked for"
        return f"{COMES}; {ran}: they ran under torch.no_grad, or nothing in them requires a gradient"
    return COMES


def _checks(found: Report) -> tuple[str, str]:
    """Return what comparing replays has shown, and a remark."""
    if found.refused:
        return f"{len(found.refused)} failed", f"kept since a replay differed: {_named(found)}"
    if not found.checked:
        return "none", 'check="never" was asked for'
    return "passed" if found.steps else "-", "each segment, at its first replay"


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
