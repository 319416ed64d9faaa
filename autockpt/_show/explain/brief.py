"""The first screen of `solve` and `explain`: at most fifteen lines of eighty columns. ``-v`` has the whole page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..._choose.candidates.from_plan import find_planned
from ..._choose.peak_breakdown import peak_parts
from ..._choose.words import in_words
from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ..._data.profile import Profile
from ...solvers.units import format_bytes, format_seconds, is_decimal
from ..page import BRIEF, Page, Table, counted
from .tree import SMALL, saved_inside, walk

MOST_LINES, MOST_ROWS = 15, 4
MOST_PLANS = 7
RECOMPUTED = "Recomputed: "
MORE = "-v shows each call, memory over the step, and notes"


def brief_plan(plan: Plan, profile: Profile | None = None, *, then: str = "") -> Page:
    """Lay out the verdict, peak and seconds beside the plain step's, what is recomputed, and what to do next.

    Args:
        plan: the plan.
        profile: the step that it was made from.
        then: what to do next, a line.
    """
    refused = f"{counted(len(plan.refused), 'call')} cannot run again and are kept: -v says which and why"
    last = [f"Next: {then}" if then and plan.segments else "", refused if plan.refused else "", MORE]
    title, figures = f"{_verdict(plan)}\n{_step(plan.model, profile, plan.profile_mode)}", list(_figures(plan))
    said = list(in_words(plan, profile))
    while True:
        blocks = [*figures, _recomputed(said), "\n".join(filter(None, last))]
        page = Page(title=title, blocks=list(filter(None, blocks)))
        if len(said) < 2 or page.text(BRIEF).count("\n") <= MOST_LINES:
            return page
        said = [*said[:-2], "and others"]


def brief_profile(profile: Profile, *, then: str = "") -> Page:
    """Lay out where the memory of a plain step goes: what stands at its peak, and the modules that save most."""
    parts = peak_parts(find_planned(profile, Plan()), ())
    seconds = f", {format_seconds(profile.plain_seconds)} a step" if profile.plain_seconds else ""
    peak = format_bytes(profile.plain_peak_bytes)
    return Page(
        title=f"{profile.model}: plain peak {peak}{seconds}\n{_step('', profile, profile.mode)}",
        blocks=[
            f"At the peak: {parts.shares()}",
            _modules(profile),
            "\n".join([f"Next: {then}", MORE] if then else [MORE]),
        ],
    )


def brief_frontier(frontier: Frontier, *, then: str = "") -> Page:
    """Lay out what budgets cost, a few of them."""
    plans = list(frontier.plans)
    if len(plans) > MOST_PLANS:
        last = len(plans) - 1
        plans = [plans[round(i * last / (MOST_PLANS - 1))] for i in range(MOST_PLANS)]
    rows = [
        [format_bytes(plan.peak_bytes), f"{plan.recompute_overhead:.1%}", counted(len(plan.segments), "segment")]
        for plan in plans
    ]
    peaks = f"{format_bytes(frontier.plain_peak_bytes)} plain, {format_bytes(frontier.minimum_bytes)} at the least"
    left_out = len(frontier.plans) - len(plans)
    return Page(
        title=f"{frontier.model or 'Any model'}: {peaks}",
        blocks=[
            Table(header=["peak", "slower", "recomputed"], rows=rows),
            "\n".join([f"Next: {then}" if then else "", f"-v shows {left_out} more rows, and notes"]).strip(),
        ],
    )


def _verdict(plan: Plan) -> str:
    if not plan.peak_bytes:
        return "A plan that was written by hand: with its profile, figures are predicted (--profile)"
    goal, overhead = plan.goal, f"{plan.recompute_overhead:.1%} slower"
    peak = _bytes(plan, plan.peak_bytes)
    if goal is not None and goal.max_overhead is not None:
        return f"Peak {peak}, {overhead}: the lowest within {goal.max_overhead:.4g} of the plain step's seconds"
    if goal is not None and goal.is_minimum:
        return f"Peak {peak}, {overhead}: the lowest that can be reached"
    asked = f" {goal.budget}" if goal is not None and isinstance(goal.budget, str) else ""
    if not asked and plan.budget_bytes is not None:
        asked = f" {format_bytes(plan.budget_bytes)}"
    if not plan.segments:
        return f"Fits{asked} already: the plain step peaks at {peak}, and nothing is recomputed"
    return f"Fits{asked}: peak {peak}, {overhead}" if asked else f"Peak {peak}, {overhead}"


def _step(model: str, profile: Profile | None, mode: str | None) -> str:
    """Say whose step it is, and where its figures come from."""
    recipe = profile.recipe if profile is not None else None
    words = [model, *([recipe.batch, recipe.precision, recipe.optimizer] if recipe is not None else [])]
    device = f" for {profile.device}" if profile is not None and mode == "fake" else ""
    ran = {"fake": f"predicted{device}", "measured": "predicted from a step that ran"}.get(mode or "", "")
    if profile is not None and recipe is None and not profile.optimizer:
        ran += ", no optimizer counted"
    return f"{', '.join(filter(None, words))}; {ran}".strip("; ") if ran else ", ".join(filter(None, words))


def _figures(plan: Plan) -> Iterator[str]:
    if not plan.peak_bytes or not plan.segments:  # by hand: nothing was predicted
        return
    less = f"{1 - plan.peak_bytes / plan.plain_peak_bytes:.0%} less" if plan.plain_peak_bytes else ""
    rows = [
        ("", "plain", "plan", ""),
        ("peak", _bytes(plan, plan.plain_peak_bytes), _bytes(plan, plan.peak_bytes), less),
    ]
    if plan.plain_seconds:
        least = plan.lower_bound_seconds
        bound = f"; no method takes less than {format_seconds(least)}" if least else ""
        after = format_seconds(plan.plain_seconds + plan.recompute_seconds)
        more = f"{format_seconds(plan.recompute_seconds)} more{bound}"
        rows.append(("step", format_seconds(plan.plain_seconds), after, more))
    before, after_ = (max(len(row[i]) for row in rows) for i in (1, 2))
    yield "\n".join(f"{name:4}  {one:>{before}}  {other:>{after_}}  {said}" for name, one, other, said in rows)


def _recomputed(said: Sequence[str]) -> str:
    """Say what is recomputed, a line for each kind of calls, each cut at its end."""
    room = BRIEF - len(RECOMPUTED)
    lines: list[str] = []
    for line in said:
        short = line if len(line) <= room else f"{line[: room - 2].rpartition(',')[0] or line[: room - 3]}, …"
        lines.append(f"{' ' * len(RECOMPUTED) if lines else RECOMPUTED}{short}")
    return "\n".join(lines)


def _modules(profile: Profile) -> Table:
    sizes, saved = profile.tensors.bytes, saved_inside(profile, once=False)
    whole = sum(sizes[tensor] for tensor in saved[0])
    rows: list[list[str]] = []
    opened = {0: True}
    for group, place in walk(profile.calls):
        depth = place["depth"]
        there = sum(sizes[tensor] for tensor in set().union(*(saved[i] for i in group)))
        if depth and opened.get(depth - 1) and there > SMALL * whole and len(rows) < MOST_ROWS:
            seconds = format_seconds(sum(profile.calls[i].forward_seconds for i in group))
            name = "  " * (depth - 1) + place["name"]
            rows.append([name, format_bytes(there), f"{there / whole:.0%}", seconds])
            opened[depth] = 2 * there > whole
        else:
            opened[depth] = depth == 0
    return Table(header=["module", "saved", "share", "forward"], rows=rows, least_told=("forward",))


def _bytes(plan: Plan, n_bytes: int) -> str:
    """Write bytes in the unit in which the plan was asked for."""
    return format_bytes(n_bytes, decimal=plan.goal is not None and is_decimal(plan.goal.budget))
