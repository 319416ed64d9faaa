"""``autockpt verify``: the plain step against the planned step, bit for bit."""

from __future__ import annotations

import click

from .._data import files
from .._data.plan import Plan
from .._show.explain import headline, verification_text
from .common import (
    Failure,
    at_most_one,
    errors,
    examples,
    file_type,
    json_option,
    keep_option,
    optimizer_option,
    overhead_option,
    print_json,
    read,
    recompute_option,
    require_torch,
    solver_option,
)
from .screen import progress, show, width
from .target import build, running
from .types import TargetName


@click.command(
    epilog=examples(
        "autockpt verify train.py:build --plan plan.json",
        "autockpt verify train.py:build --budget min --steps 2",
    ),
)
@click.argument("target", type=TargetName(), metavar="TARGET")
@click.option("--plan", "plan_file", type=file_type, help="The plan to check: a file of `autockpt solve`, or -.")
@click.option("--budget", help="Check the plan that is chosen for this budget: 8GiB, 80%, min, or a number of bytes.")
@overhead_option
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Steps, one after the other.")
@solver_option
@optimizer_option
@keep_option
@recompute_option
@json_option
def verify(
    target: str,
    plan_file: str | None,
    budget: str | None,
    max_overhead: float | None,
    steps: int,
    solver: str,
    optimizer: str | None,
    keep: tuple[str, ...],
    recompute: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the plain step and the planned step from the same state, and compare all that they make, bit for bit.

    TARGET is package.module:function or file.py:function. It takes no arguments and returns (model, inputs),
    (model, inputs, loss) or (model, inputs, loss, optimizer). A tuple of inputs is passed by position, a mapping by
    keyword. Without a loss, one that takes three copies of the outputs is reserved for; --optimizer goes before the
    function's own. Without a plan and a budget, the plan that the function has applied to the model is checked.

    Compares outputs, loss, gradients, buffers, parameters and generators. The plain step runs twice, so that its own
    noise is not blamed on the plan. The exit status is 1 where the verdict is not "exact".
    """
    at_most_one(plan=plan_file, budget=budget, max_overhead=max_overhead)
    with errors(as_json=as_json):
        plan = None
        if plan_file is not None:
            data, source = read(plan_file)
            plan = files.decode(data, Plan, source=source)
        require_torch()
        from .._check.verify import verify as run

        with progress(f"importing {target}"):
            made = build(target)
        with progress(f"verifying {type(made.model).__name__}"), running(target):
            found = run(
                made.model,
                made.inputs,
                loss=made.loss,
                plan=plan,
                budget=budget,
                optimizer=optimizer or made.optimizer,
                max_overhead=max_overhead,
                solver=solver,
                steps=steps,
                keep=keep,
                recompute=recompute,
            )
    if as_json:
        print_json(found)
    else:
        show(verification_text(found, width=width()))
    if not found.exact:
        raise Failure(headline(found))
