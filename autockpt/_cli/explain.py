"""``autockpt explain``: a profile, a plan or a frontier in words. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

import click
import msgspec

from .. import _files
from .._explain import (
    FrontierReport,
    PlanReport,
    ProfileReport,
    frontier_text,
    plan_text,
    profile_text,
    report_frontier,
    report_plan,
    report_profile,
)
from .._frontier import Frontier
from .._plan import Plan
from .._profile import Profile
from .common import (
    Misuse,
    at_most_one,
    budget_help,
    errors,
    examples,
    file_type,
    json_option,
    overhead_option,
    print_json,
    read,
    solver_option,
    time_limit_option,
)
from .screen import progress, show, width

__all__ = ["explain"]


@click.command(
    short_help="Show what a plan does, what a frontier offers, or where the memory of a recorded step goes.",
    epilog=examples(
        "autockpt explain profile.json",
        "autockpt explain plan.json --profile profile.json",
        "autockpt explain profile.json --budget 8GiB",
    ),
)
@click.argument("file", type=file_type, metavar="FILE")
@click.option("--budget", help=f"With a profile or a frontier: explain the plan for this budget: {budget_help}")
@overhead_option
@solver_option
@time_limit_option
@click.option("--profile", "profile_file", type=file_type, help="With a plan: its profile, for a chart of the memory.")
@json_option
def explain(
    file: str,
    budget: str | None,
    max_overhead: float | None,
    solver: str,
    time_limit: float,
    profile_file: str | None,
    as_json: bool,
) -> None:
    """Show what a plan recomputes, frees and costs, what a frontier offers, or where a profile's memory and time go.

    FILE is what `autockpt profile`, `autockpt solve` or `autockpt frontier` wrote, or - for stdin. With --budget or
    --max-overhead, a profile gets the plan that `autockpt solve` makes, and of a frontier it is the best plan that
    fits. Imports no torch.
    """
    given = at_most_one(budget=budget, max_overhead=max_overhead)
    if not given and solver != "auto":
        raise click.UsageError("--solver goes with --budget or --max-overhead")
    asked = Asked(budget, max_overhead, solver, time_limit) if given else None
    with errors(as_json=as_json):
        report = _report(*read(file), asked, profile_file)
    if as_json:
        print_json(report)
    elif isinstance(report, PlanReport):
        show(plan_text(report, width=width()))
    elif isinstance(report, FrontierReport):
        show(frontier_text(report, width=width()))
    else:
        show(profile_text(report, width=width()))


class Asked(NamedTuple):
    """What is asked of a plan, and of whom; one of the first two is None."""

    budget: str | None
    max_overhead: float | None
    solver: str
    time_limit_seconds: float


def _report(
    data: bytes, source: str, asked: Asked | None, profile_file: str | None
) -> PlanReport | FrontierReport | ProfileReport:
    """Report what is in `data`; where something is asked, the plan that a profile or a frontier has for it."""
    schema = _schema(data)
    profile = None if profile_file is None else _files.decode(read(profile_file)[0], Profile, source=profile_file)
    if schema.startswith("autockpt.plan/"):
        if asked is not None:
            raise Misuse(f"{source} is a plan and was made for a budget already; --budget goes with a profile")
        return report_plan(_files.decode(data, Plan, source=source), profile)
    if schema.startswith("autockpt.frontier/"):
        frontier = _files.decode(data, Frontier, source=source)
        if asked is None:
            return report_frontier(frontier)
        return report_plan(frontier.within(asked.budget, max_overhead=asked.max_overhead), profile)
    if profile is not None:
        raise Misuse(f"{source} is no plan; --profile goes with one, or with a frontier and a budget")
    record = _files.decode(data, Profile, source=source)
    if asked is None:
        return report_profile(record)
    from .._solve import solve

    with progress("solving"):
        plan = solve(
            record,
            asked.budget,
            max_overhead=asked.max_overhead,
            solver=asked.solver,
            time_limit_seconds=asked.time_limit_seconds,
        )
        return report_plan(plan, record)


class _Head(msgspec.Struct):
    schema: str = ""


def _schema(data: bytes) -> str:
    """Return the schema that `data` names; empty where it names none, which `decode` then explains."""
    try:
        return msgspec.json.decode(data, type=_Head).schema
    except msgspec.MsgspecError:
        return ""
