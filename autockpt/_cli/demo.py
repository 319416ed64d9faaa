"""``autockpt demo``: the whole of it on a small model."""

from __future__ import annotations

from .._show.explain.results import demo_page
from .screen import progress
from .target import require_torch
from .verb import Result, verb


@verb("autockpt demo", "autockpt demo --json")
def demo() -> Result:
    """Train a 12-layer GPT-2 plain and inside half of its plain peak, and compare.

    Random weights, dropout on; on a GPU where there is one, else on the CPU in under three minutes. The exit
    status is 1 where the planned step leaves the budget or its gradients differ from those of the plain step.
    """
    require_torch()
    from .._check.demo import run

    with progress("training a small GPT-2 plain and inside half of its peak"):
        report = run()
    return Result(report, demo_page(report).text, "; ".join(report.failures))
