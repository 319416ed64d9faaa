"""What the demo found, as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ...solvers.units import format_bytes, format_seconds
from .layout import format_table

if TYPE_CHECKING:  # it comes with torch
    from ..._check.demo import DemoReport


def demo_text(report: DemoReport, *, width: int) -> str:
    """Lay out the report as a small table for people."""
    nothing = "-"
    rows = [
        ("budget", nothing, format_bytes(report.budget_bytes)),
        (
            "predicted peak",
            format_bytes(report.predicted_plain_peak_bytes),
            format_bytes(report.predicted_peak_bytes),
        ),
        ("measured peak", format_bytes(report.measured_plain_peak_bytes), format_bytes(report.measured_peak_bytes)),
        ("measured peak / budget", nothing, f"{report.measured_peak_bytes / report.budget_bytes:.1%}"),
        ("measured seconds per step", *map(format_seconds, (report.measured_plain_seconds, report.measured_seconds))),
        ("predicted recompute overhead", nothing, f"{report.predicted_recompute_overhead:.1%}"),
        ("measured recompute overhead", nothing, f"{report.measured_recompute_overhead:.1%}"),
        ("segments recomputed", "0", str(report.segments)),
        ("replays counted in one step", "0", str(report.replays)),
        (f"largest gradient difference, {report.steps} steps", nothing, f"{report.largest_gradient_difference:g}"),
        (f"largest weight difference, {report.steps} steps", nothing, f"{report.largest_weight_difference:g}"),
    ]
    head = (
        f"{report.model}, {report.parameters / 1e6:.1f} M parameters, batch {report.batch}, on {report.device}, "
        f"torch {report.torch_version}"
    )
    table = format_table(["", "plain", "in half the memory"], rows, width, elide=0)
    verdict = "Inside the budget, and the same training bit for bit."
    if report.failures:
        verdict = "FAILED: " + "; ".join(report.failures)
    elif report.largest_gradient_difference:
        verdict = (
            "Inside the budget. Two plain runs differ from one another on this device, and so does the planned one."
        )
    return "\n\n".join([textwrap.fill(head, width), table, textwrap.fill(verdict, width)]) + "\n"
