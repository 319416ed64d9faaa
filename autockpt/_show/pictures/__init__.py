"""Pictures of profiles, plans and frontiers, by matplotlib, an extra.

Modules that draw import matplotlib, and are imported only when something is drawn. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._data.errors import MissingExtra
from ..._data.frontier import Frontier
from ..._data.plan import Plan
from ..._data.profile import Profile


def plot_profile(profile: Profile, ax: Any) -> Any:
    """Draw `profile`; see `Profile.plot`."""
    return plot_plan(None, profile, ax)


def plot_plan(plan: Plan | None, profile: Profile, ax: Any) -> Any:
    """Draw what `plan` does to the step in `profile`; see `Plan.plot`."""
    require_matplotlib()
    from .memory import draw_memory

    return draw_memory(profile, plan, ax=ax)


def plot_frontier(
    frontier: Frontier,
    peers: Mapping[str, Sequence[tuple[float, float]]] | None,
    budgets: Mapping[str, int | str] | None,
    ax: Any,
) -> Any:
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
