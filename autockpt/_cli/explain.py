"""``autockpt explain``: a profile, a plan or a frontier in words. Imports no torch where the profile is there."""

from __future__ import annotations

import shlex

import click

from .._data.document import require_matplotlib
from .._data.door import door
from .._data.frontier import Frontier
from .._data.plan import Plan
from .._data.profile import Profile
from ..solvers.units import at_least
from . import options, solving
from .screen import progress
from .source import load
from .verb import Misuse, Result, verb, write


@verb(
    "autockpt explain train.py:build",
    "autockpt explain plan.json --profile profile.json",
    "autockpt explain gpt2-xl --budget 24GiB",
    "autockpt explain profile.json --plot memory.png",
)
@options.source
@click.option("--budget", help=f"With a profile or a frontier: explain the plan for this budget: {options.BUDGET}")
@options.overhead
@solving.solver
@options.solver_seconds
@click.option(
    "--profile",
    "profile_source",
    shell_complete=options.complete_source,
    metavar="SOURCE",
    help="With a plan: its profile, for a chart and decisions.",
)
@options.plot
@options.verbose
def explain(
    source: str,
    budget: str | None,
    max_overhead: float | None,
    solver: str,
    seconds: float,
    profile_source: str | None,
    plot: str | None,
    verbose: bool,
) -> Result:
    """Show what a plan recomputes, frees and costs, what a frontier offers, or where a profile's memory and time go.

    SOURCE is what `autockpt profile`, `autockpt solve` or `autockpt frontier` wrote, - for stdin, a name that
    `autockpt profiles` lists, or file.py:function, of whose model a step is recorded. With --budget or --max-overhead,
    a profile gets the plan that `autockpt solve` makes, and of a frontier it is the best plan that fits. Imports no
    torch but to record.
    """
    from .._choose.solve import solve  # with numpy, which help does without
    from .._show.explain.brief import brief_frontier, brief_plan, brief_profile

    asked = options.at_most_one(budget=budget, max_overhead=max_overhead)
    if not asked and solver != "auto":
        raise click.UsageError("--solver goes with --budget or --max-overhead")
    if plot is not None:
        require_matplotlib()
    shown: Plan | Frontier | Profile = load(source, Plan, Frontier, Profile)
    profile = None if profile_source is None else load(profile_source, Profile)
    if profile is not None and isinstance(shown, Profile):
        raise Misuse(f"{source} is no plan; --profile goes with one, or with a frontier and a budget")
    if asked and isinstance(shown, Plan):
        raise Misuse(f"{source} is a plan and was made for a budget already; --budget goes with a profile")
    if asked and isinstance(shown, Frontier):
        shown = shown.within(budget, max_overhead=max_overhead)
    elif asked and isinstance(shown, Profile):
        profile = shown
        with progress("solving", limit_seconds=seconds):
            shown = door(solve)(profile, budget, max_overhead=max_overhead, solver=solver, seconds=seconds)

    def draw(path: str) -> None:
        if not isinstance(shown, Plan):
            figure = shown.plot()
        elif profile is not None:
            figure = shown.plot(profile)
        else:
            raise Misuse("--plot shows the memory of a step under the plan; give the profile of that step: --profile")
        figure.savefig(path, dpi=options.DPI)

    write(plot, draw)
    page = shown._page(profile) if isinstance(shown, Plan) else shown._page()
    if verbose:
        return Result(page.document, page.text)
    if isinstance(shown, Profile):
        return Result(page.document, brief_profile(shown, then=f"autockpt frontier {shlex.quote(source)}").brief)
    if isinstance(shown, Frontier):
        half = at_least(max(shown.plain_peak_bytes // 2, shown.minimum_bytes))
        then = f"autockpt explain {shlex.quote(source)} --budget {half}"
        return Result(page.document, brief_frontier(shown, then=then).brief)
    again = options.command(
        *("solve", source), budget=budget, max_overhead=max_overhead, solver=solver, seconds=seconds, output="plan.json"
    )
    then = again if asked else f'autockpt.apply(model, plan="{source}")'
    return Result(page.document, brief_plan(shown, profile, then=then, drawn=True).brief)
