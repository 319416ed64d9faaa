"""``autockpt solve``: a plan for a profile and what is asked of it. Imports no torch where the profile is there."""

from __future__ import annotations

from typing import Any

import click

from .._data.door import door
from .._data.profile import Profile
from . import options, solving
from .screen import progress
from .source import load
from .verb import Result, verb, write


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
@options.solver_seconds
@options.output
@options.verbose
def solve(
    source: str, budget: str | None, max_overhead: float | None, output: str | None, verbose: bool, **asked: Any
) -> Result:
    """Choose the cheapest calls to recompute so that a recorded step stays under a budget.

    SOURCE is a name that `autockpt profiles` lists, a file that `autockpt profile` wrote, - for stdin, or
    file.py:function, of whose model a step is recorded as `autockpt profile` does. Needs no GPU, and imports no torch
    but to record.

    Prints what the plan does in a few lines; -v shows it call by call. Where no plan meets the budget the exit status
    is 1, and what the lowest reachable peak consists of takes the place of the plan, with --json as a document.
    """
    from .._choose.solve import solve as find_plan  # with numpy, which help does without
    from .._show.explain.brief import brief_plan

    if not options.at_most_one(budget=budget, max_overhead=max_overhead):
        raise click.UsageError("give either --budget or --max-overhead")
    profile = load(source, Profile)
    with progress(f"solving for {budget or max_overhead}", limit_seconds=asked["seconds"]):
        plan = door(find_plan)(profile, budget, max_overhead=max_overhead, **asked)
    write(output, plan.save)
    if verbose:
        return Result(plan, plan._page(profile).text)
    again = options.command("solve", source, budget=budget, max_overhead=max_overhead, output="plan.json", **asked)
    then = again if output is None else f'autockpt.apply(model, plan="{output}")'
    return Result(plan, brief_plan(plan, profile, then=then).brief)
