"""The short pages of `solve` and `explain`: at most fifteen lines of eighty columns. ``-v`` shows the whole page."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ..._choose.candidates.from_plan import find_planned
from ..._choose.predict.peak_breakdown import peak_parts
from ..._choose.predict.timeline import predict_timeline
from ..._data.frontier import Frontier
from ..._data.hardware.paces import host_mode
from ..._data.hardware.rooflines import is_host_bound
from ..._data.plan import Plan, levels_of
from ..._data.profile import Profile
from ..._train.messages.words import in_words, phrase
from ...solvers import simulate
from ...solvers.units import format_bytes, format_like, format_seconds
from ..page import BRIEF, Page, PageTable, counted, filled
from .chart import timeline_chart
from .common import budget_of, first_within, pace, rate, shared_by
from .tree import SMALL, saved_inside, walk

MOST_LINES, MOST_ROWS = 15, 5
LEAST_ROWS = 4  # of a chart; with fewer it says little
MOST_PLANS = 7
ROOM = 52  # columns for words beside figures
RECOMPUTED = "Recomputed: "
HOST_BOUND = "How much slower is not known: the host takes longer to launch the step than its kernels run"
MORE = "shows each call, memory over the step, and notes"
FLAG = "-v"


def brief_plan(
    plan: Plan,
    profile: Profile | None = None,
    *,
    then: str = "",
    also: str = "",
    drawn: bool = False,
    by: str = FLAG,
) -> Page:
    """Lay out the verdict, peak and seconds beside those of the plain step, what is recomputed, and what to do next.

    Args:
        plan: the plan.
        profile: the profile that it was made from.
        then: a line that says what to do next.
        also: a few words that say what else can be asked for.
        drawn: whether to draw the memory over the step instead of peak and seconds; needs the profile.
        by: what shows the whole page.
    """
    if profile is not None:
        plan = _with_figures(plan, profile)
    refused = f"{counted(len(plan.refused), 'call')} cannot run again and are kept: {by} says which and why"
    more = _more(f"{by} {MORE}", also)
    last = [f"Next: {then}" if then and plan.segments else "", refused if plan.refused else "", more]
    title, figures = f"{_verdict(plan, profile)}\n{_step(plan.model, profile, plan.profile_mode)}", list(_figures(plan))
    if drawn and profile is not None:
        return _drawn(plan, profile, title, last)
    said = list(in_words(plan, profile))
    while True:
        lines: list[str] = list(filter(None, [_recomputed(said), "\n".join(filter(None, last))]))
        page = Page(title=title, blocks=[*figures, *lines])
        if len(said) < 2 or page.text(BRIEF).count("\n") <= MOST_LINES:
            return page
        said = [*said[:-2], "and others"]


def _drawn(plan: Plan, profile: Profile, title: str, last: Sequence[str]) -> Page:
    """Lay out the verdict and a chart; also what is recomputed, and what cannot be, if there is room."""
    timeline = predict_timeline(profile, plan)
    said = _recomputed([phrase(plan, profile)]) if plan.segments else ""

    def page(lines: Sequence[str], rows: int) -> Page:
        chart = functools.partial(timeline_chart, timeline, asked=budget_of(plan), rows=rows)
        return Page(title=title, blocks=[chart, "\n".join(filter(None, lines))])

    least = list(filter(None, last))[:1]  # what to do next, where there is something
    below = (([said, *last], LEAST_ROWS), (last, LEAST_ROWS), (least, 2))
    every = (page(lines, rows) for lines, least in below for rows in range(MOST_ROWS, least - 1, -1))
    return first_within(every, MOST_LINES)


def _with_figures(plan: Plan, profile: Profile) -> Plan:
    """Return the plan with predicted figures, which a plan that was written by hand lacks."""
    if plan.peak_bytes:
        return plan
    planned = find_planned(profile, plan)
    every = range(len(planned.replays))
    clocks = planned.clocks(every)
    return msgspec.structs.replace(
        plan,
        model=plan.model or profile.model,
        peak_bytes=simulate(planned.problem, every).peak_bytes,
        plain_peak_bytes=profile.plain_peak_bytes,
        recompute_seconds=planned.all_seconds,
        plain_seconds=planned.plain_seconds,
        host_pace_seconds=None if clocks is None else clocks.host_pace_seconds,
        host_mode=None if clocks is None else host_mode(profile),
        profile_mode=profile.mode,
    )


def brief_profile(profile: Profile, *, then: str = "", also: str = "", by: str = FLAG) -> Page:
    """Lay out where the memory of a plain step goes: what is allocated at its peak, and the modules that save most.

    Args:
        profile: the profile of the step.
        then: a line that says what to do next.
        also: a few words that say what else can be asked for.
        by: what shows the whole page.
    """
    planned = find_planned(profile, Plan())
    parts, plain_seconds = peak_parts(planned, ()), planned.plain_seconds  # on the clocks on which plans are timed
    seconds = f", {format_seconds(plain_seconds)} a step" if plain_seconds else ""
    peak = format_bytes(profile.plain_peak_bytes)
    title = f"{profile.model}: plain peak {peak}{seconds}\n{_step('', profile, profile.mode)}"
    last = "\n".join(filter(None, [f"Next: {then}" if then else "", _more(f"{by} {MORE}", also)]))

    def page(most: int) -> Page:
        return Page(title=title, blocks=[f"At the peak: {parts.shares()}", _modules(profile, most), last])

    return first_within(map(page, range(MOST_ROWS, 1, -1)), MOST_LINES)


def brief_frontier(
    frontier: Frontier,
    profile: Profile | None = None,
    *,
    then: str = "",
    also: str = "",
    most: int = MOST_PLANS,
    asked: object = None,
    by: str = FLAG,
) -> Page:
    """Lay out what budgets cost.

    Args:
        frontier: the plans.
        profile: the profile that they were made from.
        then: a line that says what to do next.
        also: a few words that say what else can be asked for.
        most: how many plans to show at most.
        asked: a budget as the user wrote it; bytes are shown in its unit.
        by: what shows the whole page.
    """
    plans = list(frontier.plans)
    if len(plans) > most:
        last = len(plans) - 1
        plans = [plans[round(i * last / (most - 1))] for i in range(most)]
    plain_bytes, least_bytes = frontier.plain_peak_bytes, frontier.minimum_bytes
    host_bound = profile is not None and is_host_bound(profile)
    left_out = len(frontier.plans) - len(plans)
    more = f"{by} shows {counted(left_out, 'more row') if left_out else 'more of each'}, and notes"
    ran = _step("", profile, plans[0].profile_mode) or "predicted"
    notes = [HOST_BOUND] if host_bound else []
    return Page(
        title=(
            f"{frontier.model or 'Any model'}: {format_like(plain_bytes, asked)} plain, "
            f"{format_like(least_bytes, asked)} at the least, at one level\n{ran}"
        ),
        blocks=[
            _costs(frontier, plans, asked, timed=not host_bound),
            "\n".join(filter(None, [*notes, f"Next: {then}" if then else "", _more(more, also)])),
        ],
    )


def _costs(frontier: Frontier, plans: Sequence[Plan], asked: object, *, timed: bool) -> PageTable:
    """Lay out a row for each plan: its peak, how much lower that is, how much slower the step is, what runs again."""
    plain_bytes = frontier.plain_peak_bytes
    rows = [
        [
            format_like(plan.peak_bytes, asked),
            f"{1 - plan.peak_bytes / plain_bytes:.0%}" if plan.segments and plain_bytes else "-",
            f"{plan.recompute_overhead:.1%}" if plan.segments and timed else "-",
            rate(frontier, plan) if timed else "-",
            _cut(phrase(plan), ROOM) if plan.segments else "nothing: the plain step",
        ]
        for plan in plans
    ]
    header = ["peak", "less", "slower", "samples/s", "recomputed"]
    if all(row[3] == "-" for row in rows):
        header, rows = [*header[:3], header[4]], [[*row[:3], row[4]] for row in rows]
    return PageTable(header=header, rows=rows, elide="recomputed", least_told=("recomputed",))


def _more(shown: str, also: str) -> str:
    return f"{shown}; {also}" if also else shown


def _verdict(plan: Plan, profile: Profile | None) -> str:
    if not plan.peak_bytes:
        return "A plan that was written by hand: with its profile, figures are predicted"
    goal, overhead = plan.goal, f"{plan.recompute_overhead:.1%} slower"
    if profile is not None and plan.profile_mode == "fake" and is_host_bound(profile):
        overhead = "slower by what its host takes, which is not known"
    if plan.status == "manual":
        return f"By hand: peak {_bytes(plan, plan.peak_bytes)}, {overhead}"
    peak = _bytes(plan, plan.peak_bytes)
    if goal is not None and goal.max_overhead is not None:
        return f"Peak {peak}, {overhead}: the lowest within {goal.max_overhead:.4g} of the plain step's seconds"
    if goal is not None and goal.is_minimum:
        one_level = all(levels_of(segment) <= 1 for segment in plan.segments)  # not so in a plan of an older version
        reached = "the lowest at one level" if one_level and not goal.is_lowest else "the lowest that can be reached"
        return f"Peak {peak}, {overhead}: {reached}"
    asked = _asked(plan)
    if not plan.segments:
        return f"Fits{asked} already: the plain step peaks at {peak}, and nothing is recomputed"
    return f"Fits{asked}: peak {peak}, {overhead}" if asked else f"Peak {peak}, {overhead}"


def _asked(plan: Plan) -> str:
    """Return the budget after a space, as it was asked for; empty where there was none."""
    if plan.goal is not None and isinstance(plan.goal.budget, str):
        return f" {plan.goal.budget}"
    return "" if plan.budget_bytes is None else f" {format_bytes(plan.budget_bytes)}"


def _step(model: str, profile: Profile | None, mode: str | None) -> str:
    """Say which step it is, and where its figures come from."""
    recipe = profile.recipe if profile is not None else None
    if profile is not None and profile.world is not None:
        model = ", ".join(filter(None, [model, shared_by(profile.world)]))
    words = [model, *([recipe.batch, recipe.precision, recipe.optimizer] if recipe is not None else [])]
    device = f" for {profile.device}" if profile is not None and mode == "fake" else ""
    ran = {"fake": f"predicted{device}", "measured": "predicted from a step that ran"}.get(mode or "", "")
    if profile is not None and mode == "fake" and recipe is None:
        ran = f"nothing ran: predicted, seconds by the roofline of {profile.device}"
    if profile is not None and recipe is None and not profile.optimizer:
        ran += ", no optimizer counted"
    return f"{', '.join(filter(None, words))}; {ran}".strip("; ") if ran else ", ".join(filter(None, words))


def _figures(plan: Plan) -> Iterator[Callable[[int], str]]:
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
    if said := pace(plan):
        rows[-1] = (*rows[-1][:3], f"{rows[-1][3]}; {said}")
    yield functools.partial(_beside, rows)


def _beside(rows: Sequence[tuple[str, str, str, str]], width: int) -> str:
    """Lay out figures beside each other. A remark that does not fit gets lines of its own."""
    before, after = (max(len(row[i]) for row in rows) for i in (1, 2))
    lines = []
    for name, one, other, said in rows:
        line = f"{name:4}  {one:>{before}}  {other:>{after}}"
        fits = len(line) + 2 + len(said) <= width
        lines += [f"{line}  {said}".rstrip()] if fits else [line, filled(f"      {said}", width)]
    return "\n".join(lines)


def _recomputed(said: Sequence[str]) -> str:
    """Say what is recomputed, in a line for each kind of calls. Lines that are too long are cut at the end."""
    lines: list[str] = []
    for line in said:
        short = _cut(line, BRIEF - len(RECOMPUTED))
        lines.append(f"{' ' * len(RECOMPUTED) if lines else RECOMPUTED}{short}")
    return "\n".join(lines)


def _cut(line: str, room: int) -> str:
    """Cut the end of a line that is longer than `room`, but not inside brackets."""
    if len(line) <= room:
        return line
    ends = [
        i for i, letter in enumerate(line[: room - 2]) if letter in ",;" and line[:i].count("(") == line[:i].count(")")
    ]
    return f"{line[: ends[-1]] if ends else line[: room - 2].rpartition(' ')[0]}, …"


def _modules(profile: Profile, most: int) -> PageTable:
    """Lay out the modules that save most, in the order of the tree."""
    sizes, saved = profile.tensors.bytes, saved_inside(profile, once=False)
    whole = sum(sizes[tensor] for tensor in saved[0])
    found: list[tuple[int, list[str]]] = []
    opened = {0: True}
    for group, place in walk(profile.calls):
        depth = place["depth"]
        there = sum(sizes[tensor] for tensor in set().union(*(saved[i] for i in group)))
        if depth and opened.get(depth - 1) and there > SMALL * whole:
            seconds = format_seconds(sum(profile.calls[i].forward_seconds for i in group))
            name = "  " * (depth - 1) + place["name"]
            found.append((there, [name, format_bytes(there), f"{there / whole:.0%}", seconds]))
            opened[depth] = 2 * there > whole
        else:
            opened[depth] = depth == 0
    shown = sorted(range(len(found)), key=lambda row: -found[row][0])[:most]  # no module saves more than its parent
    rows = [found[row][1] for row in sorted(shown)]
    return PageTable(header=["module", "saved", "share", "forward"], rows=rows, least_told=("forward",))


def _bytes(plan: Plan, n_bytes: int) -> str:
    """Write bytes in the unit of the plan's budget."""
    return format_like(n_bytes, budget_of(plan))
