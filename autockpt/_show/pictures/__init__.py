"""Pictures of profiles, plans and frontiers: plots (matplotlib, an extra) and HTML for notebooks.

Modules that draw import matplotlib, and are imported only when something is drawn. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..._data.errors import AutockptError, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..._choose.frontier import Frontier
    from ..._data.plan import Plan
    from ..._data.profile import Profile

__all__ = ["KINDS", "plot_frontier", "plot_plan", "plot_profile", "require_matplotlib"]

KINDS = ("memory", "modules")


def plot_profile(profile: Profile, kind: str, ax: Axes | None) -> Figure:
    """Draw `profile`; see `Profile.plot`."""
    _check(kind)
    if kind == "modules":
        from .modules import draw_modules

        return draw_modules(profile, ax=ax)
    from .memory import draw_memory

    return draw_memory(profile, ax=ax)


def plot_plan(plan: Plan, profile: Profile, kind: str, ax: Axes | None) -> Figure:
    """Draw what `plan` does to the step in `profile`; see `Plan.plot`."""
    _check(kind)
    if kind == "modules":
        from .modules import draw_modules

        return draw_modules(profile, plan, ax=ax)
    from .memory import draw_memory

    return draw_memory(profile, plan, ax=ax)


def plot_frontier(
    frontier: Frontier,
    peers: Mapping[str, Sequence[tuple[float, float]]] | None,
    budgets: Mapping[str, int | str] | None,
    ax: Axes | None,
) -> Figure:
    """Draw `frontier`; see `Frontier.plot`."""
    require_matplotlib()
    from .frontier import draw_frontier

    return draw_frontier(frontier, peers=peers or {}, budgets=budgets or {}, ax=ax)


def require_matplotlib() -> None:
    """Raise MissingExtra where matplotlib cannot be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            'pictures are drawn by matplotlib, which is not installed; install it by: pip install "autockpt[plot]"'
        ) from error


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise AutockptError(f"there is no picture of kind {kind!r}; there are {' and '.join(map(repr, KINDS))}")
    require_matplotlib()
