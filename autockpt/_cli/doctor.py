"""``autockpt doctor``: what is here, whether allocations are seen, and what is refused."""

from __future__ import annotations

import click

from .common import Failure, errors, examples, json_option, print_json
from .screen import progress, show


@click.command(
    epilog=examples("autockpt doctor", "autockpt doctor --json"),
)
@json_option
def doctor(as_json: bool) -> None:
    """Say what machine, torch, CUDA, driver and allocator there are, and what is refused, to paste into a bug report.

    Records a small step on the CPU, and on the first CUDA device where there is one, to see whether allocations are
    seen. At most fifteen lines. The exit status is 1 where they are not, or where torch is not installed.
    """
    with errors(as_json=as_json):
        from .._check.doctor import examine
        from .._show.explain.doctor import doctor_text

        with progress("recording a small step"):
            report = examine()
    if as_json:
        print_json(report)
    else:
        show(doctor_text(report))
    if report.failures:
        raise Failure("; ".join(report.failures))
