"""The frontier: for every budget at once, what it costs to keep to it; `_choose/frontier.py` finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from ..solvers.errors import BudgetError, Infeasible
from .errors import InvalidFile
from .files import Stored
from .goal import Goal
from .plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Frontier(Stored, frozen=True, kw_only=True, tag="autockpt.frontier/1"):
    """The plans that no other beats in both predicted peak and recompute seconds.

    Attributes:
        model: class of the model they were made for.
        solver: who was asked; each plan says who found it.
        plans: from the plain one, without segments, to the one with the lowest peak. Each peaks lower and costs
            more than the one before it; only the second may cost nothing, as the plain one does. The budget of each
            is its own peak.
        dominated_by: the step at which the lowest peak stands, in words.
        samples: of the batch; None where that is not known.
    """

    PAGE: ClassVar[str] = "explain.frontier.frontier_page"
    BRIEF: ClassVar[str] = "explain.brief.brief_frontier"
    RARE: ClassVar[tuple[str, ...]] = ("samples",)

    model: str = ""
    solver: str
    plans: Annotated[tuple[Plan, ...], msgspec.Meta(min_length=1)]
    dominated_by: str = ""
    samples: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        plain = self.plans[0]
        if plain.segments or plain.recompute_seconds or plain.peak_bytes != plain.plain_peak_bytes:
            raise InvalidFile("the first plan of the frontier is not the plain one")
        for i, (above, below) in enumerate(pairwise(self.plans), 1):
            more_seconds = below.recompute_seconds - above.recompute_seconds
            if below.peak_bytes >= above.peak_bytes or more_seconds < 0 or (more_seconds == 0 and i > 1):
                figures = (f"{each.peak_bytes:,} bytes, {each.recompute_seconds} s" for each in (below, above))
                raise InvalidFile(
                    f"plan {i} of the frontier does not peak lower and recompute longer than the one before it: "
                    f"{' after '.join(figures)}"
                )

    @property
    def plain_peak_bytes(self) -> int:
        """Predicted peak of the plain step."""
        return self.plans[0].peak_bytes

    @property
    def minimum_bytes(self) -> int:
        """Lowest predicted peak, at one level of recomputing."""
        return self.plans[-1].peak_bytes

    def samples_per_second(self, plan: Plan) -> float | None:
        """Return how many samples a second of training takes under one of the plans; None where that is not known."""
        seconds = plan.plain_seconds + plan.recompute_seconds
        return self.samples / seconds if self.samples and seconds else None

    def within(
        self, budget: int | str | None = None, *, max_overhead: float | None = None, total_bytes: int | None = None
    ) -> Plan:
        """Pick the cheapest plan whose predicted peak stays within `budget`, or the lowest within `max_overhead`.

        Args:
            budget: bytes, ``"8GB"`` (8·10⁹), ``"8GiB"`` (8·2³⁰), or ``"80%"`` of `total_bytes`; ``"min"`` for the
                lowest peak.
            max_overhead: instead of a budget, the highest recompute overhead, a ratio.
            total_bytes: memory of the device, for a budget in percent.

        Returns:
            One of the plans. `solve`, asked the very same, may find a better one between two of them.

        Raises:
            BudgetError: the budget does not parse, or not exactly one of budget and overhead is given; or it is
                ``"lowest"``, and a frontier has no plans below one level.
            Infeasible: the budget is below the minimum, which the error carries with its plan.
        """
        goal = Goal.of(budget, max_overhead, total_bytes=total_bytes)
        if max_overhead is not None:
            return next(plan for plan in reversed(self.plans) if plan.recompute_overhead <= max_overhead)
        if goal.is_lowest:
            raise BudgetError(
                'budget="lowest" goes below one level of recomputing, and a frontier has no such plans: ask '
                'autockpt.solve(profile, "lowest"), or for "min"'
            )
        if goal.budget_bytes is None:
            return self.plans[-1]
        budget_bytes = goal.budget_bytes
        for plan in self.plans:
            if plan.peak_bytes <= budget_bytes:
                return plan
        raise Infeasible(
            budget_bytes=budget_bytes,
            minimum_bytes=self.minimum_bytes,
            solver=self.solver,
            dominated_by=self.dominated_by,
            plan=self.plans[-1],
            asked=budget if isinstance(budget, str) else "",
        )

    def plot(
        self,
        *,
        peers: Mapping[str, Sequence[tuple[float, float]]] | None = None,
        budgets: Mapping[str, int | str] | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Draw recompute overhead over peak bytes, by matplotlib (``pip install "autockpt[plot]"``).

        Args:
            peers: points of other methods, by name: peak bytes and recompute overhead, a ratio.
            budgets: budgets to mark, by name: ``{"RTX 4090": "24GB"}``.
            ax: axes to draw in; None for a figure of its own, which pyplot knows nothing of.

        Returns:
            The figure; a notebook shows it as the value of a cell, and ``.savefig("frontier.png")`` writes it.

        Raises:
            BudgetError: a budget does not parse.
            MissingExtra: matplotlib is not installed.

        Example:
            >>> import autockpt
            >>> frontier = autockpt.frontier(autockpt.Profile.load("resnet-50"), solver="uniform", points=3)
            >>> figure = frontier.plot(peers={"every block": [(20_000, 0.3)]}, budgets={"tiny": "16KiB"})
        """
        figure: Figure = self._drawn("frontier.draw_frontier", peers or {}, budgets or {}, ax)
        return figure
