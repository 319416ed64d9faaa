"""``autockpt frontier``: what every budget costs. Imports torch only to record a profile."""

from __future__ import annotations

from typing import Any

import click

from ..._data.frontier import Frontier
from ..._data.profile import Profile
from ..._data.text.document import require_matplotlib
from ...solvers.units import at_least, format_like, parse_bytes
from .. import options, solving
from ..recording import HowRecorded, left_to_measure, recording
from ..screen import progress, tell
from ..source import load
from ..target import names_function
from ..verb import Result, verb, write


@verb(
    "autockpt frontier profile.json -o frontier.json",
    "autockpt frontier train.py:build --budget 16GiB",
)
@options.source
@solving.solver
@click.option(
    "--points",
    type=click.IntRange(min=2),
    default=12,  # fewer than `autockpt.frontier` has: someone waits for it
    show_default=True,
    help="Budgets to solve for, evenly spaced, the plain peak and the minimum included.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    help="Solve for this budget instead, besides the plain peak and the minimum. May be given several times.",
)
@options.seconds(
    2.0,
    "Seconds for all budgets together. More, such as 60, may find cheaper plans, and says how far from the least they "
    "are.",
)
@recording()
@options.offload
@options.output
@options.plot
@options.verbose
def frontier(
    source: str,
    solver: str,
    points: int,
    budgets: tuple[str, ...],
    seconds: float,
    offload: str | None,
    output: str | None,
    plot: str | None,
    verbose: bool,
    how: HowRecorded,
) -> Result:
    """Show what each budget costs for a recorded step, down to the lowest peak at one level of recomputing.

    SOURCE is a name that `autockpt profiles` lists, a file that `autockpt profile` wrote, - for stdin, or
    file.py:function. A step of the function's model is recorded without running it: memory is predicted, and seconds
    come from the roofline of a device. --mode measured runs a step. Needs no GPU, and imports torch only to record.

    Prints a row for each plan that no other beats in both predicted peak and recompute seconds. -v shows which solver
    found each plan, and how far it is from the cheapest possible. `autockpt explain` shows the plan for a budget, from
    the file that -o writes.
    """
    from ..._choose.frontier import frontier as find_frontier  # imports numpy, which --help does not need
    from ..._show.explain.brief import brief_frontier

    if plot is not None:
        require_matplotlib()
    options.refuse_unclear(*budgets, offload=offload)
    how.refuse_unless(names_function(source))
    profile = load(source, Profile, how=how)
    more: dict[str, Any] = {"total_bytes": options.device_bytes(profile), "offload": offload}
    n_budgets = len(budgets) + 2 if budgets else points
    with progress(f"solving for {n_budgets} budgets", limit_seconds=seconds):
        found = find_frontier(profile, solver=solver, points=points, budgets=budgets or None, seconds=seconds, **more)
    asked = next(iter(budgets), None)
    _tell_left_out(budgets, found, options.device_bytes(profile))
    write(output, found.save)
    write(plot, lambda path: found.plot().savefig(path, dpi=options.DPI))
    if verbose:
        return Result(found, found._page().text)
    budget = asked or at_least(max(found.plain_peak_bytes // 2, found.minimum_bytes))
    then = options.command("solve", source, budget=budget, offload=offload, output="plan.json", **how.asked())
    if output is not None:
        then = options.command("explain", output, budget=budget)
    page = brief_frontier(
        found, profile, then=then, also=left_to_measure(source, profile), most=len(found.plans), asked=asked
    )
    return Result(found, page.brief)


def _tell_left_out(budgets: tuple[str, ...], found: Frontier, total_bytes: int | None) -> None:
    """Say which budgets no plan was found for."""
    for budget in budgets:
        if parse_bytes(budget, total_bytes=total_bytes) < found.minimum_bytes:
            lowest = format_like(found.minimum_bytes, budget)
            tell(f"{budget} is left out: {found.solver!r} found no plan below {lowest}")
