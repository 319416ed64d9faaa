"""A picture of the predicted memory over a step: what is allocated when, the budget, and the peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import Patch, StepPatch

from ..._data.plan import Plan
from ..._data.profile import Profile
from ...solvers.units import format_bytes, format_seconds
from ..explain.chart import LAYERS, layer_bytes
from ..explain.names import place
from ..page import shorten
from .course import Course, follow
from .figure import axes_of, bytes_axis, head, ink, legend, note

LONGEST_NAME = 60  # of the step at the peak


def draw_profile(profile: Profile, ax: Any) -> Any:
    """Draw the memory over the plain step; see `Profile.plot`."""
    return draw_memory(profile, Plan(), ax)


def draw_memory(profile: Profile, plan: Plan, ax: Any) -> Any:
    """Draw the memory over the step under a plan, and the plain step as a line behind it; see `Plan.plot`."""
    plain, shown = follow(profile, Plan()), follow(profile, plan)
    ax = axes_of(ax)
    _areas(ax, shown)
    highest = shown.timeline.peak_bytes
    if plan.segments:
        line = {"color": "#888888", "linestyle": (0, (4, 2)), "linewidth": 1.1}
        levels = [step.level_bytes for step in plain.timeline.steps]
        _stairs(ax, levels, plain.edges, label="plain step", **line)
        highest = max(highest, *levels)
    if plan.budget_bytes is not None and not (plan.goal and plan.goal.budget_bytes is None):
        left = shown.peak_seconds > 0.5 * shown.edges[-1]  # the budget's label goes to the side without the peak
        ax.axhline(plan.budget_bytes, color=ink(), linewidth=1.4, label="budget")
        at, offset = ((0, plan.budget_bytes), (4, 4)) if left else ((1, plan.budget_bytes), (-4, 4))
        bold = {"xycoords": ("axes fraction", "data"), "fontweight": "bold"}
        note(ax, f"budget {format_bytes(plan.budget_bytes)}", at, offset, across="left" if left else "right", **bold)
        highest = max(highest, plan.budget_bytes)
    _peak(ax, shown)
    ax.set_xlim(0, max(shown.edges[-1], plain.edges[-1]))
    ax.set_ylim(0, highest * 1.12)
    bytes_axis(ax.yaxis, highest)
    _step_axis(ax, shown)
    head(ax, f"Predicted memory over a step of {profile.model}", _said(shown, plain, plan))
    _legend(ax, shown)
    return ax.figure


def _areas(ax: Any, course: Course) -> None:
    """Stack the parts of the memory, from the bottom up."""
    steps = course.timeline.steps
    below = [0] * len(steps)
    for _, colour, name, parts in LAYERS:
        level = [layer_bytes(step, parts) + low for step, low in zip(steps, below, strict=True)]
        if level != below:
            style = {"fill": True, "color": colour, "linewidth": 0, "label": name}
            _stairs(ax, level, course.edges, baseline=below, **style)
        below = level
    _stairs(ax, below, course.edges, color=ink(), linewidth=0.7, label="level")


def _stairs(ax: Any, levels: Sequence[int], edges: Sequence[float], *, baseline: Any = None, **style: Any) -> None:
    """Draw as `ax.stairs` does, but without its search for axis limits: that takes seconds, and we set them by hand."""
    ax.add_artist(StepPatch(levels, edges, baseline=baseline, **{"fill": False, **style}))


def _peak(ax: Any, course: Course) -> None:
    """Mark the peak, and write its height on the side with more room."""
    at = (course.peak_seconds, course.timeline.peak_bytes)
    ring = {"marker": "o", "markersize": 7, "markeredgewidth": 1.6, "markerfacecolor": "none"}
    ax.plot(*([each] for each in at), color=ink(), label="peak", **ring)
    left = at[0] > 0.6 * course.edges[-1]
    said = f"peak {format_bytes(at[1])}"
    note(ax, said, at, (-7 if left else 7, 5), across="right" if left else "left", fontsize=9.5, fontweight="bold")


def _step_axis(ax: Any, course: Course) -> None:
    """Mark seconds, and below them the phases of the step."""
    if course.timed:
        ax.xaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    else:
        ax.set_xticks([])
    ends = [0.0, course.forward_seconds, course.backward_seconds, course.edges[-1]]
    for phase, start, stop in zip(("forward", "backward", "optimizer"), ends, ends[1:], strict=False):
        if stop > start:
            ax.axvline(stop, color="#888888", linewidth=0.8, linestyle=":")
            middle = ((start + stop) / 2, 0)
            note(ax, phase, middle, (0, -30), across="center", xycoords=("data", "axes fraction"), fontsize=10)


def _said(shown: Course, plain: Course, plan: Plan) -> str:
    """What the picture says, in a line."""
    where = f"peak, {shorten(place(shown.timeline.steps[shown.timeline.peak].name), LONGEST_NAME)}"
    if not plan.segments:
        return where
    said = f"{shown.timeline.peak_bytes / plain.timeline.peak_bytes:.0%} of the plain peak"
    if shown.timed:
        said += f", {shown.backward_seconds / plain.backward_seconds - 1:.1%} recompute overhead"
    return f"{said}; {where}"


def _legend(ax: Any, course: Course) -> None:
    """Name the areas from the top down, with the bytes of each at the peak; then the plain step."""
    steps = course.timeline.steps
    areas = []
    for _, colour, name, parts in reversed(LAYERS):
        if any(layer_bytes(step, parts) for step in steps):
            size = layer_bytes(steps[course.timeline.peak], parts)
            areas.append(Patch(color=colour, label=f"{name}, {format_bytes(size)}" if size else name))
    lines = [line for line in ax.patches if line.get_label() == "plain step"]
    legend(ax, handles=[*areas, *lines], title="at the peak", title_fontsize=9, alignment="left")
