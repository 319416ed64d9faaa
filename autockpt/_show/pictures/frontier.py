"""A picture of a frontier: what each budget costs, beside other methods' points and the memory of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ...solvers.units import format_bytes, parse_bytes
from .figure import axes_of, bytes_axis, head, ink, legend, note

Peers = Mapping[str, Sequence[tuple[float, float]]]
"""The points of each method, by its name: peak bytes and recompute overhead, a ratio."""

PEER_COLOURS = ("#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#bbbbbb")
PEER_MARKERS = "s^Dv<>"


def draw_frontier(frontier: Frontier, peers: Peers, budgets: Mapping[str, int | str], ax: Any) -> Any:
    """Draw recompute overhead over peak bytes, a stair for each plan up to the next peak; see `Frontier.plot`."""
    marked = {name: parse_bytes(budget) for name, budget in budgets.items()}
    ax = axes_of(ax)
    plans = frontier.plans[::-1]
    peaks = [plan.peak_bytes for plan in plans]
    points: list[tuple[float, float]] = [(plan.peak_bytes, plan.recompute_overhead) for plan in plans]
    points += [point for each in peers.values() for point in each]
    left, right = (f([*marked.values(), *(peak for peak, _ in points)]) for f in (min, max))
    margin = 0.04 * (right - left or right)
    low, high = max(left - margin, 0), right + margin
    _draw_plans(ax, plans, high)
    for i, (name, each) in enumerate(peers.items()):
        colour, marker = PEER_COLOURS[i % len(PEER_COLOURS)], PEER_MARKERS[i % len(PEER_MARKERS)]
        dots = {"linestyle": "", "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.5}
        at = [peak for peak, _ in each], [100 * overhead for _, overhead in each]
        ax.plot(*at, color=colour, marker=marker, label=name, **dots)
    if low < peaks[0]:
        ax.axvspan(low, peaks[0], color="#999999", alpha=0.18, linewidth=0, label="no plan")
    for name, budget_bytes in marked.items():
        ax.axvline(budget_bytes, color=ink(), linewidth=1.1, linestyle=(0, (4, 2)))
        upright = {"rotation": 90, "verticalalignment": "top", "xycoords": ("data", "axes fraction")}
        note(ax, name, (budget_bytes, 1), (-4, -3), across="right", **upright)
    top = 100 * max([0.01, *(overhead for _, overhead in points)])
    ax.set_xlim(low, high)
    ax.set_ylim(-0.03 * top, 1.08 * top)
    bytes_axis(ax.xaxis, high, span_bytes=high - low)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    ax.set_xlabel("peak bytes")
    ax.set_ylabel("recompute overhead")
    ax.grid(alpha=0.25)
    lowest = f"{format_bytes(peaks[0])}, {peaks[0] / peaks[-1]:.0%} of it, for {plans[0].recompute_overhead:.1%}"
    said = f"from the plain peak of {format_bytes(peaks[-1])} down to {lowest}; as predicted"
    head(ax, f"What each budget costs {frontier.model or 'the model'}", said)
    legend(ax)
    return ax.figure


def _draw_plans(ax: Any, plans: Sequence[Plan], high: float) -> None:
    """Draw the plans, from the lowest peak up, and the least overhead that any method would need."""
    peaks = [plan.peak_bytes for plan in plans]
    overheads = [100 * plan.recompute_overhead for plan in plans]
    ax.plot([*peaks, high], [*overheads, 0.0], drawstyle="steps-post", color="#4477aa", linewidth=1.8, zorder=3)
    ax.plot(peaks, overheads, "o", color="#4477aa", markersize=6, label="autockpt, predicted", zorder=4)
    bounds, seconds = [plan.lower_bound_seconds for plan in plans], plans[-1].plain_seconds
    if seconds and any(bounds):
        least = [100 * (bound or 0.0) / seconds for bound in bounds]
        style = {"drawstyle": "steps-pre", "linestyle": ":", "color": "#777777", "linewidth": 1.2}
        ax.plot(peaks, least, label="least by any method", zorder=2, **style)  # a bound also holds for lower peaks
