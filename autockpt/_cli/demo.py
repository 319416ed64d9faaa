"""``autockpt demo``: the whole of it on a small model."""

from __future__ import annotations

from .._show.explain.verification import headline
from .screen import progress
from .target import require_torch
from .verb import Result, verb


@verb("autockpt demo", "autockpt demo --json")
def demo() -> Result:
    """Run steps of a 12-layer GPT-2 plain and inside half of its plain peak, and compare all that they make.

    Random weights, dropout on; on a GPU where there is one, else on the CPU in under three minutes. The exit
    status is 1 where the planned steps leave the budget or make something else than the plain ones.
    """
    require_torch()
    from .._check.demo import run

    with progress("running a small GPT-2 plain and inside half of its peak"):
        found = run()
    failures = [] if found.verdict in ("exact", "not repeatable") else [headline(found)]
    if (found.measured_peak_bytes or 0) > (found.budget_bytes or 0):
        failures.append(f"The measured peak, {found.measured_peak_bytes:,} bytes, exceeds the budget")
    return Result({"verification": found}, found._page().text, "; ".join(failures))
