"""The largest batch, and what smaller ones bring, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...solvers.units import format_bytes, format_seconds
from .layout import DEFAULT_WIDTH, format_table

if TYPE_CHECKING:  # it comes with torch
    from ..._run.max_batch import MaxBatch


def explain_max_batch(found: MaxBatch) -> str:
    """Return the batch sizes as text: a row for each, the best marked."""
    rows = [
        [
            str(each.batch_size),
            format_bytes(each.plan.peak_bytes),
            format_seconds(each.step_seconds),
            f"{each.plan.recompute_overhead:.1%}",
            f"{each.samples_per_second:.4g}",
            "best" if each is found.best else "",
        ]
        for each in found.throughputs
    ]
    head = (
        f"Largest batch within {format_bytes(found.plan.budget_bytes or 0)}: {found.batch_size} samples, and "
        f"{found.plain_batch_size} without recomputing. Figures are predicted."
    )
    header = ["samples", "peak", "step", "recompute overhead", "samples/s", ""]
    return f"{head}\n\n{format_table(header, rows, DEFAULT_WIDTH, elide=5)}\n"
