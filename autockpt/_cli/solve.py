"""``autockpt solve``: a plan for a profile and a budget. Imports no torch."""

from __future__ import annotations

import click

from .. import _files
from .._explain import explain_plan
from .._profile import Profile
from .common import (
    errors,
    file_type,
    json_option,
    keep_option,
    output_option,
    print_json,
    progress,
    read,
    recompute_option,
    width,
    write,
)

__all__ = ["solve"]


@click.command(short_help="Choose what to recompute so that a recorded step fits a budget.")
@click.argument("profile", type=file_type)
@click.option("--budget", required=True, help="For the whole step: 8GiB, 8GB, or a number of bytes.")
@click.option("--solver", default="auto", show_default=True, help="One solver by name; a wrong name lists them.")
@keep_option
@recompute_option
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True, help="Seconds."
)
@output_option
@json_option
def solve(
    profile: str,
    budget: str,
    solver: str,
    keep: tuple[str, ...],
    recompute: tuple[str, ...],
    time_limit: float,
    output: str | None,
    as_json: bool,
) -> None:
    """Choose the cheapest calls to recompute so that the step recorded in PROFILE stays under a budget.

    PROFILE is a file that `autockpt profile` wrote, or - for stdin. Needs no GPU and imports no torch.

    Prints the plan. Where no plan meets the budget the exit status is 1; with --json a document that carries
    the lowest reachable peak takes the place of the plan.
    """
    from .._solve import solve as find_plan

    with errors(as_json=as_json):
        data, source = read(profile)
        record = _files.decode(data, Profile, source=source)
        with progress(f"solving for {budget}"):
            plan = find_plan(
                record, budget, solver=solver, time_limit_seconds=time_limit, keep=keep, recompute=recompute
            )
    write(plan, output)
    if as_json:
        print_json(plan)
    else:
        click.echo(explain_plan(plan, width=width()), nl=False)
