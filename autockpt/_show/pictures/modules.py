"""A picture of the modules: what each saves for backward, and under a plan how much of it is held and freed."""

from __future__ import annotations

from typing import Any

from matplotlib.textpath import TextPath

from ..._data.plan import Plan
from ..._data.profile import Profile
from ...solvers.units import format_bytes
from ..explain.decisions import decide
from ..explain.profile import SMALL, report_profile
from .figure import FREED, HELD, axes_of, bytes_axis, head
from .rows import row_name, up_to

__all__ = ["draw_modules"]

ROW_INCHES = 0.27
NAME_POINTS = 9


def draw_modules(profile: Profile, plan: Plan | None = None, *, ax: Any = None) -> Any:
    """Draw a bar for each row of the module tree: what it saves, or of that what a plan holds and frees.

    Args:
        profile: the recorded step.
        plan: the plan; None for the plain step.
        ax: axes to draw in; None for a picture of its own.

    Returns:
        The figure.

    Raises:
        NotApplicable: the plan does not fit the recorded step.
    """
    if plan is None:
        report = report_profile(profile)
        floor = SMALL * report.activation_bytes
        modules = up_to([row for row in report.modules if not row.depth or row.saved_bytes > floor])
        names = [row_name(row, profile.model) for row in modules]
        held, freed = [row.saved_bytes for row in modules], [0] * len(modules)
        what = "predicted" if profile.mode == "fake" else "recorded"
        said = f"each module with all inside it, as {what}"
    else:
        activations = decide(profile, plan)
        rows = up_to(activations.rows)
        names = [row_name(row, profile.model) for row in rows]
        held, freed = [row.held_bytes for row in rows], [row.freed_bytes for row in rows]
        said = f"{format_bytes(activations.freed_bytes)} of {format_bytes(activations.saved_bytes)} freed, "
        said += f"{format_bytes(activations.replay_bytes)} held for replays; predicted"
    ax = axes_of(ax, height=1.2 + ROW_INCHES * len(names))
    places = range(len(names))
    ax.barh(places, held, height=0.72, color=HELD, label="held")
    if plan is not None:
        ax.barh(places, freed, left=held, height=0.72, color=FREED, label="freed")
        ax.legend(loc="lower right", frameon=False, fontsize=9)
    for place, kept, gone in zip(places, held, freed, strict=True):
        ax.annotate(
            format_bytes(kept) + (f" held, {format_bytes(gone)} freed" if gone else ""),
            xy=(kept + gone, place),
            xytext=(4, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=8.5,
        )
    ax.set_yticks(places, names, fontsize=NAME_POINTS, horizontalalignment="left")
    widest = max(TextPath((0, 0), name, size=NAME_POINTS).get_extents().x1 for name in names)
    ax.tick_params(axis="y", length=0, pad=1.05 * widest + 6)  # names begin, not end, in one line: they are indented
    ax.set_ylim(len(names) - 0.5, -0.5)
    highest = max([*(kept + gone for kept, gone in zip(held, freed, strict=True)), 1])
    ax.set_xlim(0, (1.18 if plan is None else 1.45) * highest)
    bytes_axis(ax.xaxis, highest)
    ax.grid(axis="x", alpha=0.25)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    head(ax, f"Saved for backward in a step of {profile.model}", said)
    return ax.figure
