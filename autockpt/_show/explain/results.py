"""Smaller pages: plans of compiled code, parts of the lowest peak, the largest batch, the profiles that are shipped."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..._data.compiled_plan import CompiledPlan
from ..._data.profile import Profile
from ..._data.timeline import PeakParts
from ...solvers.units import format_bytes, format_like, format_seconds, is_decimal
from ..page import Bar, Page, PageTable
from .common import budget_of, caveats

if TYPE_CHECKING:  # they come with torch
    from ..._check.max_batch import MaxBatch
    from ..._check.measure import Measurement


MOST_MODULES = 12
"""So many modules have a row of their own."""


def compiled_page(plan: CompiledPlan, _: object = None) -> Page:
    """Lay out a plan of compiled code: peaks, what runs again in each graph and each module, and notes."""
    decimal = is_decimal(plan.goal.budget) if plan.goal is not None else False

    def written(n_bytes: int) -> str:
        return format_bytes(n_bytes, decimal=decimal)

    graphs = PageTable(
        header=["graph", "operators of forward", "run again"],
        rows=[[each.name or "the model", str(each.operators), str(len(each.again))] for each in plan.graphs],
    )
    modules = PageTable(
        header=["module", "seconds that run again"],
        rows=[[name or "the model", format_seconds(seconds)] for name, seconds in plan.modules[:MOST_MODULES]],
        below=_more(len(plan.modules) - MOST_MODULES, "modules"),
    )
    figures = [
        ("predicted peak", written(plan.peak_bytes), f"{written(plan.plain_peak_bytes)} where nothing runs again")
    ]
    figures += [("of forward", f"{plan.share:.1%}", "runs again, by a roofline")]
    if plan.tried_bytes:
        tried = ", then ".join(map(written, plan.tried_bytes))
        figures += [("generated code", written(plan.tried_bytes[-1]), f"is the peak of its first step; tried: {tried}")]
    return Page(
        title=f"Plan for the compiled code of {plan.model or 'any model'}",
        figures=figures,
        blocks=[*([graphs] if plan.graphs else []), *([modules] if plan.modules else []), *caveats((), plan.notes)],
        document={
            "kind": "compiled plan",
            "model": plan.model,
            "goal": plan.goal,
            "predicted_peak_bytes": plan.peak_bytes,
            "predicted_plain_peak_bytes": plan.plain_peak_bytes,
            "predicted_recompute_seconds": plan.recompute_seconds,
            "predicted_forward_seconds": plan.forward_seconds,
            "tried_bytes": plan.tried_bytes,
            "graphs": plan.graphs,
            "modules": plan.modules,
            "notes": plan.notes,
        },
    )


def _more(number: int, noun: str) -> str:
    return f"and {number} more {noun}" if number > 0 else ""


def recorded_page(profiles: Mapping[str, Profile]) -> Page:
    """List the recorded profiles that come with autockpt, by their names."""
    rows = [
        [
            name,
            each.model,
            *(getattr(each.recipe, what, "") for what in ("batch", "precision", "optimizer")),
            each.device,
            format_bytes(each.plain_peak_bytes),
            format_seconds(each.plain_seconds),
        ]
        for name, each in profiles.items()
    ]
    table = PageTable(
        header=["name", "model", "batch", "precision", "optimizer", "device", "plain peak", "plain step"],
        rows=rows,
        elide="batch",
        least_told=["model", "optimizer", "precision", "device"],
    )
    predicted = [name for name, each in profiles.items() if each.mode == "fake"]
    which = "these" if len(predicted) == len(rows) else ", ".join(predicted)
    said = f"Nothing ran for {which}: peaks and seconds are predicted, by the roofline of the device"
    fields = ("model", "recipe", "mode", "device", "torch_version", "recorded", "plain_peak_bytes", "plain_seconds")
    told = [{"name": name, **{field: getattr(each, field) for field in fields}} for name, each in profiles.items()]
    return Page(
        title="Recorded profiles; each name can stand wherever a profile file can",
        blocks=[table, said] if predicted else [table],
        document={"kind": "profiles", "profiles": told},
    )


def parts_page(parts: PeakParts, budget_bytes: int, asked: object = None) -> Page:
    """Say what the lowest reachable peak consists of, and how far above the budget it is, in the unit of `asked`."""
    in_unit = functools.partial(format_like, amount=asked)
    missing = f"{in_unit(parts.peak_bytes - budget_bytes)} above the budget of {in_unit(budget_bytes)}"
    where = f"It stands at: {parts.step}"
    where += f", in {parts.op}" if parts.op else ""
    where += f"; most of what is restored belongs to {parts.segment}" if parts.segment else ""
    named = [(name, in_unit(size), f"{size / parts.peak_bytes:>4.0%}") for name, size in parts.named() if size]
    minimum = ("predicted minimum", in_unit(parts.peak_bytes), missing)
    return Page(figures=[minimum, *named], blocks=[where])


def measurement_page(found: Measurement) -> Page:
    """Say the peak of a measured step, what of it the step added, and how long the step took."""
    figures = [
        ("measured peak", format_bytes(found.peak_bytes), f"allocated on {found.device}"),
        ("of it the step", format_bytes(found.step_bytes), "above what stood as it began"),
        ("at its end", format_bytes(found.end_bytes), ""),
        ("measured step", format_seconds(found.seconds), "under the instrument"),
    ]
    if found.resident_bytes is not None:
        figures.append(("resident", format_bytes(found.resident_bytes), "by which the process grew"))
    return Page(figures=figures, blocks=[])


def max_batch_page(found: MaxBatch) -> Page:
    """Say what the largest batch is, and the samples per second at several batch sizes."""
    asked = budget_of(found.plan)
    most = max(each.samples_per_second for each in found.throughputs) or 1
    rows = [
        [
            str(each.batch_size),
            format_like(each.plan.peak_bytes, asked),
            format_seconds(each.step_seconds),
            f"{each.plan.recompute_overhead:.1%}",
            Bar(f"{each.samples_per_second:.4g}", each.samples_per_second / most),
            "best" if each is found.best else "",
        ]
        for each in found.throughputs
    ]
    return Page(
        title=(
            f"Largest batch within {format_like(found.plan.budget_bytes or 0, asked)}: {found.batch_size} samples, and "
            f"{found.plain_batch_size} without recomputing. Figures are predicted."
        ),
        blocks=[PageTable(header=["samples", "peak", "step", "recompute overhead", "samples/s", ""], rows=rows)],
    )
