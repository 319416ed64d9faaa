"""What the demo found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .layout import fill
from .verification import verification_text

if TYPE_CHECKING:  # it comes with torch
    from ..._check.demo import DemoReport


def demo_text(report: DemoReport, *, width: int) -> str:
    """Lay out the verification, and in a sentence what training came to."""
    if report.failures:
        verdict = "FAILED: " + "; ".join(report.failures)
    elif report.same_weights:
        verdict = (
            f"Inside the budget, and the same training bit for bit: {report.trained_steps} steps of SGD, plain and "
            "planned, made the same losses and weights."
        )
    else:
        verdict = (
            "Inside the budget. Two plain runs differ from one another on this device, and so does the planned one."
        )
    return f"{verification_text(report.verification, width=width)}\n{fill(verdict, width)}\n"
