"""``autockpt solve``: a plan for a profile and what is asked of it. Imports no torch."""

from __future__ import annotations

import click

from .._data import files
from .._data.profile import Profile
from .._show.explain import explain_plan
from .common import (
    at_most_one,
    budget_help,
    errors,
    examples,
    json_option,
    keep_option,
    output_option,
    overhead_option,
    print_json,
    read,
    recompute_option,
    seconds_option,
    solver_option,
    write,
)
from .profile_type import profile_type
from .screen import progress, show, width


@click.command(
    epilog=examples(
        "autockpt solve gpt2-xl --budget 24GiB",
        "autockpt solve profile.json --budget 8GiB -o plan.json",
        "autockpt solve profile.json --max-overhead 0.15",
    ),
)
@click.argument("profile", type=profile_type)
@click.option("--budget", help=f"For the whole step: {budget_help}")
@overhead_option
@solver_option
@keep_option
@recompute_option
@seconds_option
@output_option
@json_option
def solve(
    profile: str,
    budget: str | None,
    max_overhead: float | None,
    solver: str,
    keep: tuple[str, ...],
    recompute: tuple[str, ...],
    seconds: float,
    output: str | None,
    as_json: bool,
) -> None:
    """Choose the cheapest calls to recompute so that the step recorded in PROFILE stays under a budget.

    PROFILE is a file that `autockpt profile` wrote, - for stdin, or a name that `autockpt profiles` lists. Needs no GPU
    and imports no torch.

    Prints the plan. Where no plan meets the budget the exit status is 1, and what the lowest reachable peak consists
    of takes the place of the plan, with --json as a document.
    """
    from .._choose.solve import solve as find_plan

    if at_most_one(budget=budget, max_overhead=max_overhead) is None:
        raise click.UsageError("give either --budget or --max-overhead")
    with errors(as_json=as_json):
        data, source = read(profile)
        record = files.decode(data, Profile, source=source)
        with progress(f"solving for {budget or max_overhead}", limit_seconds=seconds):
            plan = find_plan(
                record,
                budget,
                max_overhead=max_overhead,
                solver=solver,
                seconds=seconds,
                keep=keep,
                recompute=recompute,
            )
        write(plan, output)
    if as_json:
        print_json(plan)
    else:
        show(explain_plan(plan, record, width=width()))
