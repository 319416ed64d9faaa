"""``autockpt explain``: a profile, a plan or a frontier in words. Imports no torch."""

from __future__ import annotations

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
from .common import Misuse, errors, file_type, json_option, print_json, progress, read, width

__all__ = ["explain"]


@click.command(short_help="Show what a plan does, what a frontier offers, or where the memory of a recorded step goes.")
@click.argument("file", type=file_type, metavar="FILE")
@click.option("--budget", help="With a profile or a frontier: explain the plan for this budget.")
@json_option
def explain(file: str, budget: str | None, as_json: bool) -> None:
    """Show what a plan recomputes, frees and costs, what a frontier offers, or where a profile's memory and time go.

    FILE is what `autockpt profile`, `autockpt solve` or `autockpt frontier` wrote, or - for stdin. With --budget, a
    profile gets the plan that `autockpt solve` makes, and of a frontier it is the cheapest plan that fits. Imports
    no torch.
    """
    with errors(as_json=as_json):
        report = _report(*read(file), budget)
    if as_json:
        print_json(report)
    elif isinstance(report, PlanReport):
        click.echo(plan_text(report, width=width()), nl=False)
    elif isinstance(report, FrontierReport):
        click.echo(frontier_text(report, width=width()), nl=False)
    else:
        click.echo(profile_text(report, width=width()), nl=False)


def _report(data: bytes, source: str, budget: str | None) -> PlanReport | FrontierReport | ProfileReport:
    """Report what is in `data`; with a budget, the plan that a profile or a frontier has for it."""
    schema = _schema(data)
    if schema.startswith("autockpt.frontier/"):
        frontier = _files.decode(data, Frontier, source=source)
        return report_frontier(frontier) if budget is None else report_plan(frontier.within(budget))
    if schema.startswith("autockpt.plan/"):
        if budget is not None:
            raise Misuse(f"{source} is a plan and was made for a budget already; --budget goes with a profile")
        return report_plan(_files.decode(data, Plan, source=source))
    profile = _files.decode(data, Profile, source=source)
    if budget is None:
        return report_profile(profile)
    from .._solve import solve

    with progress(f"solving for {budget}"):
        return report_plan(solve(profile, budget))


class _Head(msgspec.Struct):
    schema: str = ""


def _schema(data: bytes) -> str:
    """Return the schema that `data` names; empty where it names none, which `decode` then explains."""
    try:
        return msgspec.json.decode(data, type=_Head).schema
    except msgspec.MsgspecError:
        return ""
