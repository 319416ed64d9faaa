"""A picture of the predicted memory over a step: what stands when, the budget, and the peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import Patch, StepPatch

from ..._data.keys import label
from ..._data.plan import Plan
from ..._data.profile import Profile
from ...solvers.units import format_bytes
from ..explain.chart import LAYERS
from .course import Course, follow
from .figure import COLOURS, axes_of, bytes_axis, head, ink, seconds_axis

LONGEST_NAME = 48  # of the call at the peak; its end says more than its beginning


def draw_memory(profile: Profile, plan: Plan | None = None, *, ax: Any = None) -> Any:
    """Draw what stands over the step, under a plan with the plain step as a line behind.

    Args:
        profile: the recorded step.
        plan: the plan; None for the plain step.
        ax: axes to draw in; None for a picture of its own.

    Returns:
        The figure.

    Raises:
        InvalidProblem: two segments overlap.
        NotApplicable: the plan does not fit the recorded step.
    """
    plain = follow(profile, Plan())
    shown = plain if plan is None else follow(profile, plan)
    ax = axes_of(ax, height=4.6)
    _areas(ax, shown)
    highest = shown.timeline.peak_bytes
    if plan is not None and plan.segments:
        line = {"color": "#888888", "linestyle": (0, (4, 2)), "linewidth": 1.1}
        levels = [step.level_bytes for step in plain.timeline.steps]
        _stairs(ax, levels, plain.edges, label="plain step", **line)
        highest = max(highest, *levels)
    if plan is not None and plan.budget_bytes is not None and not (plan.goal and plan.goal.budget_bytes is None):
        _budget(ax, plan.budget_bytes, left=shown.peak_seconds > 0.5 * shown.edges[-1])
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
    """Stack what stands, from the bottom up; the legend says how much of each the peak consists of."""
    steps = course.timeline.steps
    below = [0] * len(steps)
    for _, name, parts in LAYERS:
        level = [sum(getattr(step, part) for part in parts) + low for step, low in zip(steps, below, strict=True)]
        if level != below:
            style = {"fill": True, "color": COLOURS[name], "linewidth": 0, "label": name}
            _stairs(ax, level, course.edges, baseline=below, **style)
        below = level
    _stairs(ax, below, course.edges, color=ink(), linewidth=0.7, label="level")


def _stairs(ax: Any, levels: Sequence[int], edges: Sequence[float], *, baseline: Any = None, **style: Any) -> None:
    """Draw as `ax.stairs` does, which takes seconds to find limits that are set by hand here."""
    ax.add_artist(StepPatch(levels, edges, baseline=baseline, **{"fill": False, **style}))


def _budget(ax: Any, budget_bytes: int, *, left: bool) -> None:
    """Draw the budget, its name to the side where the peak is not."""
    ax.axhline(budget_bytes, color=ink(), linewidth=1.4, label="budget")
    ax.annotate(
        f"budget {format_bytes(budget_bytes)}",
        xy=(0 if left else 1, budget_bytes),
        xycoords=("axes fraction", "data"),
        xytext=(4 if left else -4, 4),
        textcoords="offset points",
        horizontalalignment="left" if left else "right",
        fontsize=9,
        fontweight="bold",
    )


def _peak(ax: Any, course: Course) -> None:
    """Mark the peak, and write beside it how high it is, to the side where there is more room."""
    peak_bytes, x = course.timeline.peak_bytes, course.peak_seconds
    ax.plot(
        [x],
        [peak_bytes],
        marker="o",
        markersize=7,
        markeredgewidth=1.6,
        color=ink(),
        markerfacecolor="none",
        label="peak",
    )
    left = x > 0.6 * course.edges[-1]
    ax.annotate(
        f"peak {format_bytes(peak_bytes)}",
        xy=(x, peak_bytes),
        xytext=(-7 if left else 7, 5),
        textcoords="offset points",
        horizontalalignment="right" if left else "left",
        fontsize=9.5,
        fontweight="bold",
    )


def _step_axis(ax: Any, course: Course) -> None:
    """Mark seconds, and below them the phases of the step."""
    if course.timed:
        seconds_axis(ax.xaxis)
    else:
        ax.set_xticks([])
    bounds = {
        "forward": (0.0, course.forward_seconds),
        "backward": (course.forward_seconds, course.backward_seconds),
        "optimizer": (course.backward_seconds, course.edges[-1]),
    }
    for phase, (start, stop) in bounds.items():
        if stop > start:
            ax.axvline(stop, color="#888888", linewidth=0.8, linestyle=":")
            ax.annotate(
                phase,
                xy=((start + stop) / 2, 0),
                xycoords=("data", "axes fraction"),
                xytext=(0, -30),
                textcoords="offset points",
                horizontalalignment="center",
                annotation_clip=False,
            )
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _said(shown: Course, plain: Course, plan: Plan | None) -> str:
    """What the picture says, in a line."""
    peak = shown.timeline.steps[shown.timeline.peak]
    what, _, call = peak.name.partition(" of ")
    name = label(call) if "#" in call else ""
    if len(name) > LONGEST_NAME:
        name = f"…{name[-LONGEST_NAME:]}"
    where = f"peak in {what} of {name}" if name else f"peak at {peak.name}"
    if plan is None or not plan.segments:
        return where
    said = f"{shown.timeline.peak_bytes / plain.timeline.peak_bytes:.0%} of the plain peak"
    if shown.timed:
        said += f", {shown.backward_seconds / plain.backward_seconds - 1:.1%} recompute overhead"
    return f"{said}; {where}"


def _legend(ax: Any, course: Course) -> None:
    """Name the areas from the top down, with what each is at the peak; then the lines."""
    peak = course.timeline.steps[course.timeline.peak]
    areas = []
    for _, name, parts in reversed(LAYERS):
        if any(getattr(step, part) for step in course.timeline.steps for part in parts):
            size = sum(getattr(peak, part) for part in parts)
            areas.append(Patch(color=COLOURS[name], label=f"{name}, {format_bytes(size)}" if size else name))
    lines = [line for line in ax.patches if line.get_label() == "plain step"]
    ax.legend(
        handles=[*areas, *lines],
        title="at the peak",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.02),
        frameon=False,
        fontsize=9,
        title_fontsize=9,
        alignment="left",
    )
