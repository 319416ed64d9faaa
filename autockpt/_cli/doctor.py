"""``autockpt doctor``: what is here, whether allocations are seen, and what is refused."""

from __future__ import annotations

from .._show.explain.doctor import doctor_text
from .screen import progress
from .verb import Result, verb


@verb("autockpt doctor", "autockpt doctor --json")
def doctor() -> Result:
    """Say what machine, torch, CUDA, driver and allocator there are, and what is refused, to paste into a bug report.

    Records a small step on the CPU, and on the first CUDA device where there is one, to see whether allocations are
    seen. At most fifteen lines. The exit status is 1 where they are not, or where torch is not installed.
    """
    from .._check.doctor import examine

    with progress("recording a small step"):
        report = examine()
    return Result(report, lambda width: doctor_text(report), "; ".join(report.failures))
