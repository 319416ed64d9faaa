"""``autockpt frontier``: what every budget costs. Imports no torch."""

from __future__ import annotations

import click

from .._data import files
from .._data.profile import Profile
from .._show.explain import explain_frontier
from .._show.pictures import require_matplotlib
from ..solvers.units import format_bytes, parse_bytes
from .common import (
    errors,
    examples,
    json_option,
    output_option,
    plot_option,
    print_json,
    read,
    solver_option,
    write,
    write_plot,
)
from .profile_type import profile_type
from .screen import progress, show, tell, width
from .types import Seconds

POINTS = 12
"""Fewer than `autockpt.frontier` has: someone waits for it."""

SECONDS = 2.0


@click.command(
    epilog=examples(
        "autockpt frontier profile.json -o frontier.json",
        "autockpt frontier profile.json --budget 16GiB",
    ),
)
@click.argument("profile", type=profile_type)
@solver_option
@click.option(
    "--points",
    type=click.IntRange(min=2),
    default=POINTS,
    show_default=True,
    help="Budgets to solve for, evenly spaced, the plain peak and the minimum included.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    help="Solve for this budget instead, besides the plain peak and the minimum. May be given several times.",
)
@click.option(
    "--seconds",
    type=Seconds(),
    default=SECONDS,
    show_default=True,
    help="Seconds for all budgets together. More, such as 60, may find cheaper plans, and says how far from the least "
    "they are.",
)
@output_option
@plot_option
@json_option
def frontier(
    profile: str,
    solver: str,
    points: int,
    budgets: tuple[str, ...],
    seconds: float,
    output: str | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Show what each budget costs for the step recorded in PROFILE, down to the lowest peak that can be reached.

    PROFILE is a file that `autockpt profile` wrote, - for stdin, or a name that `autockpt profiles` lists. Needs no GPU
    and imports no torch.

    Prints a row for each plan that no other beats in both predicted peak and recompute seconds. `autockpt explain`
    shows the one for a budget, from the file that -o writes.
    """
    from .._choose.frontier import frontier as find_frontier

    with errors(as_json=as_json):
        if plot is not None:
            require_matplotlib()
        data, source = read(profile)
        record = files.decode(data, Profile, source=source)
        n_budgets = len(budgets) + 2 if budgets else points
        with progress(f"solving for {n_budgets} budgets", limit_seconds=seconds):
            found = find_frontier(record, solver=solver, points=points, budgets=budgets or None, seconds=seconds)
        for budget in budgets:
            if parse_bytes(budget) < found.minimum_bytes:
                tell(f"{budget} is left out: {solver!r} found no plan below {format_bytes(found.minimum_bytes)}")
        write(found, output)
        if plot is not None:
            write_plot(found.plot(), plot)
    if as_json:
        print_json(found)
    else:
        show(explain_frontier(found, width=width()))
