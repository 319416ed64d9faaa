"""``autockpt explain``: a profile, a plan or a frontier in words. Imports torch only to record a profile."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import click

from ..._data.compiled_plan import CompiledPlan
from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._data.text.document import require_matplotlib
from ..._data.text.door import door
from ..._show.page import Page
from ...solvers.units import at_least
from .. import options, solving
from ..recording import HowRecorded, left_to_measure, recording
from ..screen import progress
from ..source import load
from ..target import names_function
from ..verb import Misuse, Result, verb, write

Shown: TypeAlias = Plan | Frontier | Profile
"""What can be explained."""


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
@recording()
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
    how: HowRecorded,
) -> Result:
    """Show what a plan recomputes, frees and costs, what a frontier offers, or where a profile's memory and time go.

    SOURCE is a file that `autockpt profile`, `autockpt solve` or `autockpt frontier` wrote, - for stdin, a name that
    `autockpt profiles` lists, or file.py:function. A step of the function's model is recorded without running it:
    memory is predicted, and seconds come from the roofline of a device. --mode measured runs a step. With --budget or
    --max-overhead a plan is explained: for a profile the one that `autockpt solve` makes, of a frontier the best one
    that fits. Imports torch only to record.
    """
    if not options.at_most_one(budget=budget, max_overhead=max_overhead) and solver != "auto":
        raise click.UsageError("--solver goes with --budget or --max-overhead")
    if plot is not None:
        require_matplotlib()
    options.refuse_unclear(budget, max_overhead=max_overhead)
    how.refuse_unless(any(map(names_function, filter(None, [source, profile_source]))))
    wanted = WantedPlan(budget=budget, max_overhead=max_overhead, solver=solver, seconds=seconds)
    shown, profile = _planned(source, *_loaded(source, profile_source, how), wanted)
    write(plot, functools.partial(_draw, shown, profile))
    page = shown._page(profile) if isinstance(shown, Plan) else shown._page()
    return Result(page.document, page.text if verbose else _brief(source, shown, profile, wanted, how).brief)


class WantedPlan(NamedTuple):
    """Which plan is to be explained; none if neither a budget nor an overhead is given."""

    budget: str | None
    max_overhead: float | None
    solver: str
    seconds: float

    @property
    def is_plan(self) -> bool:
        """Whether a plan is asked for."""
        return self.budget is not None or self.max_overhead is not None


def _loaded(source: str, profile_source: str | None, how: HowRecorded) -> tuple[Shown, Profile | None]:
    """Return what is to be explained, and the profile that goes with it.

    If the profile is still to be recorded, it is recorded in the mode of the plan's profile, unless the user names a
    mode or a device.
    """
    shown: Shown = load(source, CompiledPlan, Plan, Frontier, Profile, how=how)
    if profile_source is None:
        return shown, None
    if isinstance(shown, CompiledPlan):
        raise Misuse(
            f"{source} is a plan of compiled code, and a profile is that of the eager step; leave --profile out"
        )
    if isinstance(shown, Plan) and how.mode is None and how.device is None:
        how = replace(how, mode=shown.profile_mode)
    profile = load(profile_source, Profile, how=how)
    if isinstance(shown, Profile):
        raise Misuse(f"{source} is no plan; --profile goes with one, or with a frontier and a budget")
    return shown, profile


def _planned(source: str, shown: Shown, profile: Profile | None, wanted: WantedPlan) -> tuple[Shown, Profile | None]:
    """Return the plan that is wanted of a profile or a frontier, with its profile; what was given if none is wanted."""
    from ..._choose.solve import solve  # imports numpy, which --help does not need

    if not wanted.is_plan:
        return shown, profile
    if isinstance(shown, Plan):
        raise Misuse(f"{source} is a plan and was made for a budget already; --budget goes with a profile")
    if isinstance(shown, Frontier):
        return shown.within(wanted.budget, max_overhead=wanted.max_overhead), profile
    with progress("solving", limit_seconds=wanted.seconds):
        return door(solve)(shown, total_bytes=options.device_bytes(shown), **wanted._asdict()), shown


def _draw(shown: Shown, profile: Profile | None, path: str) -> None:
    if isinstance(shown, CompiledPlan):
        raise Misuse("--plot shows the calls of a step, and a plan of compiled code has none; leave it out")
    if not isinstance(shown, Plan):
        figure = shown.plot()
    elif profile is not None:
        figure = shown.plot(profile)
    else:
        raise Misuse("--plot shows the memory of a step under the plan; give the profile of that step: --profile")
    figure.savefig(path, dpi=options.DPI)


def _brief(source: str, shown: Shown, profile: Profile | None, wanted: WantedPlan, how: HowRecorded) -> Page:
    """Lay out the first screen, with what to do next."""
    from ..._show.explain.brief import brief_frontier, brief_plan, brief_profile
    from ..._show.explain.results import compiled_page

    if isinstance(shown, CompiledPlan):
        return compiled_page(shown)
    if isinstance(shown, Profile):
        then = options.command("frontier", source, **how.asked())
        return brief_profile(shown, then=then, also=left_to_measure(source, shown))
    if isinstance(shown, Frontier):
        half = at_least(max(shown.plain_peak_bytes // 2, shown.minimum_bytes))
        return brief_frontier(shown, then=options.command("explain", source, budget=half))
    again = options.command("solve", source, output="plan.json", **wanted._asdict(), **how.asked())
    then = again if wanted.is_plan else f'autockpt.apply(model, plan="{source}")'
    return brief_plan(shown, profile, then=then, also=left_to_measure(source, profile), drawn=True)
