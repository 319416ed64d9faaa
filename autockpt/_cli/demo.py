"""``autockpt demo``: the whole of it on a small model."""

from __future__ import annotations

import itertools

import click

from .common import Failure, errors, examples, json_option, print_json, require_torch
from .screen import progress, show, width


@click.command(
    epilog=examples(
        "autockpt demo",
        "autockpt demo --json",
    ),
)
@json_option
def demo(as_json: bool) -> None:
    """Train a 12-layer GPT-2 plain and inside half of its plain peak, and compare.

    Random weights, dropout on; on a GPU where there is one, else on the CPU in under three minutes. The exit
    status is 1 where the planned step leaves the budget or its gradients differ from those of the plain step.
    """
    number = itertools.count(1)
    with errors(as_json=as_json):
        require_torch()
        from .._check.demo import STAGES, run
        from .._show.explain import demo_text

        report = run(stage=lambda what: progress(f"{next(number)} of {STAGES}: {what}"))
    if as_json:
        print_json(report)
    else:
        show(demo_text(report, width=width()))
    if report.failures:
        raise Failure("; ".join(report.failures))
