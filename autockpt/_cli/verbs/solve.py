"""``autockpt solve``: a plan for a profile and what is asked of it. Imports torch only to record a profile."""

from __future__ import annotations

from typing import Any

import click

from ..._data.profile import Profile
from ..._data.text.door import door
from .. import options, solving
from ..recording import HowRecorded, left_to_measure, recording
from ..screen import progress
from ..source import load
from ..target import names_function
from ..verb import Result, verb, write


@verb(
    "autockpt solve gpt2-xl --budget 24GiB",
    "autockpt solve train.py:build --budget 8GiB -o plan.json",
    "autockpt solve profile.json --max-overhead 0.15",
)
@options.source
@click.option("--budget", help=f"For the whole step: {options.BUDGET}")
@options.overhead
@solving.solver
@options.keep
@options.recompute
@options.offload
@options.solver_seconds
@recording()
@options.output
@options.verbose
def solve(
    source: str,
    budget: str | None,
    max_overhead: float | None,
    output: str | None,
    verbose: bool,
    how: HowRecorded,
    **asked: Any,
) -> Result:
    """Choose the cheapest calls to recompute so that a recorded step stays under a budget.

    SOURCE is a name that `autockpt profiles` lists, a file that `autockpt profile` wrote, - for stdin, or
    file.py:function. A step of the function's model is recorded without running it: memory is predicted, and seconds
    come from the roofline of a device. --mode measured runs a step. Needs no GPU, and imports torch only to record.

    Prints what the plan does in a few lines; -v shows it call by call. If no plan meets the budget, the exit status is
    1, and what the lowest reachable peak consists of is shown instead of a plan, with --json as a document.
    """
    from ..._choose.solve import solve as find_plan  # imports numpy, which --help does not need
    from ..._show.explain.brief import brief_plan

    if not options.at_most_one(budget=budget, max_overhead=max_overhead):
        raise click.UsageError("give either --budget or --max-overhead")
    options.refuse_unclear(budget, max_overhead=max_overhead, offload=asked["offload"])
    how.refuse_unless(names_function(source))
    profile = load(source, Profile, how=how)
    with progress(f"solving for {budget or max_overhead}", limit_seconds=asked["seconds"]):
        total_bytes = options.device_bytes(profile)
        plan = door(find_plan)(profile, budget, max_overhead=max_overhead, total_bytes=total_bytes, **asked)
    write(output, plan.save)
    if verbose:
        return Result(plan, plan._page(profile).text)
    asked |= how.asked()
    again = options.command("solve", source, budget=budget, max_overhead=max_overhead, output="plan.json", **asked)
    then = again if output is None else f'autockpt.apply(model, plan="{output}")'
    return Result(plan, brief_plan(plan, profile, then=then, also=left_to_measure(source, profile)).brief)
