"""A picture of a frontier: what each budget costs, beside other methods' points and the memory of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._data.frontier import Frontier
from ...solvers.units import format_bytes, parse_bytes
from .figure import axes_of, bytes_axis, head, ink

Peers = Mapping[str, Sequence[tuple[float, float]]]
"""By name of a method, its points: peak bytes and recompute overhead, a ratio."""

PEER_COLOURS = ("#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#bbbbbb")
PEER_MARKERS = "s^Dv<>"


def draw_frontier(frontier: Frontier, *, peers: Peers, budgets: Mapping[str, int | str], ax: Any = None) -> Any:
    """Draw recompute overhead over peak bytes: a step for each plan, from its own peak up to that of the next.

    Args:
        frontier: the plans.
        peers: other methods' points, by name.
        budgets: budgets to mark, by name: ``{"RTX 4090": "24GB"}``.
        ax: axes to draw in; None for a picture of its own.

    Returns:
        The figure.

    Raises:
        BudgetError: a budget does not parse.
    """
    marked = {name: parse_bytes(budget) for name, budget in budgets.items()}
    ax = axes_of(ax, height=4.6)
    plans = frontier.plans[::-1]
    peaks = [plan.peak_bytes for plan in plans]
    overheads = [100 * plan.recompute_overhead for plan in plans]
    others = [point for points in peers.values() for point in points]
    right = max([*peaks, *marked.values(), *(peak for peak, _ in others)])
    left = min([*peaks, *marked.values(), *(peak for peak, _ in others)])
    margin = 0.04 * (right - left or right)
    low, high = max(left - margin, 0), right + margin
    top = max([*overheads, *(100 * overhead for _, overhead in others), 1.0])

    ax.plot([*peaks, high], [*overheads, 0.0], drawstyle="steps-post", color="#4477aa", linewidth=1.8, zorder=3)
    ax.plot(peaks, overheads, "o", color="#4477aa", markersize=6, label="autockpt, predicted", zorder=4)
    bounds = [plan.lower_bound_seconds for plan in plans]
    seconds = plans[-1].plain_seconds
    if seconds and any(bounds):
        least = [100 * (bound or 0.0) / seconds for bound in bounds]
        style = {"drawstyle": "steps-pre", "linestyle": ":", "color": "#777777", "linewidth": 1.2}
        ax.plot(peaks, least, label="least by any method", zorder=2, **style)  # what holds here holds further down
    for i, (name, points) in enumerate(peers.items()):
        style = {"color": PEER_COLOURS[i % len(PEER_COLOURS)], "marker": PEER_MARKERS[i % len(PEER_MARKERS)]}
        xs, ys = [peak for peak, _ in points], [100 * overhead for _, overhead in points]
        ax.plot(xs, ys, linestyle="", markersize=6, markeredgecolor="white", markeredgewidth=0.5, label=name, **style)
    if low < peaks[0]:
        ax.axvspan(low, peaks[0], color="#999999", alpha=0.18, linewidth=0, label="no plan")
    for name, budget_bytes in marked.items():
        ax.axvline(budget_bytes, color=ink(), linewidth=1.1, linestyle=(0, (4, 2)))
        ax.annotate(
            name,
            xy=(budget_bytes, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -3),
            textcoords="offset points",
            rotation=90,
            horizontalalignment="right",
            verticalalignment="top",
            fontsize=9,
        )
    ax.set_xlim(low, high)
    ax.set_ylim(-0.03 * top, 1.08 * top)
    bytes_axis(ax.xaxis, high, span_bytes=high - low)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    ax.set_xlabel("peak bytes")
    ax.set_ylabel("recompute overhead")
    ax.grid(alpha=0.25)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    lowest = f"{format_bytes(peaks[0])}, {peaks[0] / peaks[-1]:.0%} of it, for {overheads[0]:.1f}%"
    head(
        ax,
        f"What each budget costs {frontier.model or 'the model'}",
        f"from the plain peak of {format_bytes(peaks[-1])} down to {lowest}; as predicted",
    )
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, fontsize=9)
    return ax.figure
