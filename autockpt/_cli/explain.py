"""``autockpt explain``: a profile, a plan or a frontier in words. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from .._data import files
from .._data.frontier import Frontier
from .._data.plan import Plan
from .._data.profile import Profile
from .._show.explain import frontier_page, plan_page, profile_page
from .._show.page import Page
from .._show.pictures import require_matplotlib
from .common import (
    Misuse,
    at_most_one,
    budget_help,
    errors,
    examples,
    json_option,
    overhead_option,
    plot_option,
    print_json,
    read,
    seconds_option,
    solver_option,
    write_plot,
)
from .profile_type import profile_type
from .screen import progress, show, width

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@click.command(
    epilog=examples(
        "autockpt explain profile.json",
        "autockpt explain plan.json --profile profile.json",
        "autockpt explain profile.json --budget 8GiB",
        "autockpt explain profile.json --plot memory.png",
    ),
)
@click.argument("file", type=profile_type, metavar="FILE")
@click.option("--budget", help=f"With a profile or a frontier: explain the plan for this budget: {budget_help}")
@overhead_option
@solver_option
@seconds_option
@click.option(
    "--profile", "profile_file", type=profile_type, help="With a plan: its profile, for a chart and decisions."
)
@plot_option
@json_option
def explain(
    file: str,
    budget: str | None,
    max_overhead: float | None,
    solver: str,
    seconds: float,
    profile_file: str | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """Show what a plan recomputes, frees and costs, what a frontier offers, or where a profile's memory and time go.

    FILE is what `autockpt profile`, `autockpt solve` or `autockpt frontier` wrote, - for stdin, or a name that
    `autockpt profiles` lists. With --budget or --max-overhead, a profile gets the plan that `autockpt solve` makes,
    and of a frontier it is the best plan that fits. Imports no torch.
    """
    given = at_most_one(budget=budget, max_overhead=max_overhead)
    if not given and solver != "auto":
        raise click.UsageError("--solver goes with --budget or --max-overhead")
    asked = Asked(budget, max_overhead, solver, seconds) if given else None
    with errors(as_json=as_json):
        if plot is not None:
            require_matplotlib()
        shown, profile = _find(*read(file), asked, profile_file)
        page = _page(shown, profile)
        if plot is not None:
            write_plot(_picture(shown, profile), plot)
    if as_json:
        print_json(page.document)
    else:
        show(page.text(width()))


class Asked(NamedTuple):
    """What is asked of a plan, and of whom; one of the first two is None."""

    budget: str | None
    max_overhead: float | None
    solver: str
    seconds: float


def _find(
    data: bytes, source: str, asked: Asked | None, profile_file: str | None
) -> tuple[Plan | Frontier | Profile, Profile | None]:
    """Find what to explain: what is in `data`, or the plan that it has for what is asked; and the profile of a plan."""
    schema = _schema(data)
    profile = None if profile_file is None else files.decode(read(profile_file)[0], Profile, source=profile_file)
    if schema.startswith("autockpt.plan/"):
        if asked is not None:
            raise Misuse(f"{source} is a plan and was made for a budget already; --budget goes with a profile")
        return files.decode(data, Plan, source=source), profile
    if schema.startswith("autockpt.frontier/"):
        frontier = files.decode(data, Frontier, source=source)
        if asked is None:
            return frontier, None
        return frontier.within(asked.budget, max_overhead=asked.max_overhead), profile
    if profile is not None:
        raise Misuse(f"{source} is no plan; --profile goes with one, or with a frontier and a budget")
    record = files.decode(data, Profile, source=source)
    if asked is None:
        return record, None
    from .._choose.solve import solve

    with progress("solving", limit_seconds=asked.seconds):
        plan = solve(
            record,
            asked.budget,
            max_overhead=asked.max_overhead,
            solver=asked.solver,
            seconds=asked.seconds,
        )
        return plan, record


def _page(shown: Plan | Frontier | Profile, profile: Profile | None) -> Page:
    if isinstance(shown, Plan):
        return plan_page(shown, profile)
    return frontier_page(shown) if isinstance(shown, Frontier) else profile_page(shown)


def _picture(shown: Plan | Frontier | Profile, profile: Profile | None) -> Figure:
    """Draw what is explained."""
    if not isinstance(shown, Plan):
        return shown.plot()
    if profile is None:
        raise Misuse("--plot shows the memory of a step under the plan; give the profile of that step: --profile")
    return shown.plot(profile)


class _Head(msgspec.Struct):
    schema: str = ""


def _schema(data: bytes) -> str:
    """Return the schema that `data` names; empty where it names none, which `decode` then explains."""
    try:
        return msgspec.json.decode(data, type=_Head).schema
    except msgspec.MsgspecError:
        return ""
