"""``autockpt verify``: the plain step against the planned step, bit for bit."""

from __future__ import annotations

from typing import Any

import click

from ..._data.plan import Plan
from ..._show.explain.verification import headline
from .. import options, solving
from ..screen import progress
from ..source import load
from ..target import build, calling, require_torch
from ..verb import Result, verb


@verb(
    "autockpt verify train.py:build --plan plan.json",
    "autockpt verify train.py:build --budget min --steps 2",
)
@options.target
@click.option(
    "--plan",
    "plan_file",
    type=options.FilePath(),
    help="The plan to check: a file of `autockpt solve`, or - for stdin.",
)
@click.option(
    "--budget", help="Check the plan that is chosen for this budget: 8GiB, 80%, min, lowest, or a number of bytes."
)
@options.overhead
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Steps, one after the other.")
@solving.solver
@options.optimizer
@options.keep
@options.recompute
def verify(target: str, plan_file: str | None, optimizer: str | None, **asked: Any) -> Result:
    """Run the plain step and the planned step from the same state, and compare all that they make, bit for bit.

    TARGET is package.module:function or file.py:function. It takes no arguments and returns (model, inputs),
    (model, inputs, loss) or (model, inputs, loss, optimizer). A tuple of inputs is passed by position, a mapping by
    keyword. Without a loss, memory is reserved for one that takes three copies of the outputs. --optimizer is used
    instead of the function's own. Without a plan, a budget and an overhead, the plan that the function has applied to
    the model is checked.

    Compares outputs, loss, gradients, buffers, parameters and generators. The plain step runs twice, so that its own
    noise is not blamed on the plan. The exit status is 1 if the verdict is not "exact".
    """
    if (asked["budget"] or "").isdecimal():
        asked["budget"] = int(asked["budget"])
    options.at_most_one(plan=plan_file, budget=asked["budget"], max_overhead=asked["max_overhead"])
    options.refuse_unclear(asked["budget"], max_overhead=asked["max_overhead"])
    plan = None if plan_file is None else load(plan_file, Plan)
    require_torch()
    from ..._check.verify import verify as run

    made = build(target)
    optimizers = optimizer or made.optimizer
    with progress(f"verifying {type(made.model).__name__}"), calling(f"a step of {target}"):
        found = run(made.model, made.inputs, loss=made.loss, plan=plan, optimizer=optimizers, **asked)
    return Result(found, found._page().text, "" if found.exact else headline(found))
