"""What is asked of a plan: a budget, the lowest peak, or the lowest peak within a recompute overhead. No torch."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from ..solvers.errors import BudgetError
from ..solvers.units import format_bytes, parse_bytes

MINIMUM = "min"

_OTHERS = (
    'budget="min" asks for the lowest peak that can be reached, and max_overhead=0.15 for the lowest peak within 15 % '
    "recompute overhead"
)


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a plan: exactly one of a budget and a recompute overhead.

    Attributes:
        budget: highest peak of the whole step: bytes, ``"8GB"``, ``"8GiB"``, ``"80%"``; ``"min"`` for the lowest peak
            that can be reached, and the cheapest plan that has it.
        max_overhead: highest recompute overhead, a ratio, and within it the lowest peak.
        total_bytes: what a budget in percent is a share of; None for any other.
        memory: what memory that is, in words.

    Raises:
        BudgetError: both are given or neither, or what is given makes no sense.
    """

    budget: int | str | None = None
    max_overhead: float | None = None
    total_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    memory: str = "memory"

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.max_overhead is None):
            given = "neither is given" if self.budget is None else f"budget={self.budget!r} and "
            given += "" if self.budget is None else f"max_overhead={self.max_overhead!r} are given"
            raise BudgetError(f"a plan needs either a budget or max_overhead, and {given}; {_OTHERS}")
        if self.max_overhead is not None:
            _check_overhead(self.max_overhead)
        elif not self.is_minimum:
            try:
                self._parsed()
            except BudgetError as error:
                raise BudgetError(f"{error}; {_OTHERS}") from None

    @classmethod
    def of(
        cls,
        budget: int | str | None,
        max_overhead: float | None = None,
        *,
        total_bytes: int | None = None,
        memory: str = "memory",
    ) -> Goal:
        """State what was asked; the memory of the device is kept where the budget is a share of it."""
        share = isinstance(budget, str) and budget.rstrip().endswith("%")
        if share and total_bytes is not None:
            return cls(budget=budget, max_overhead=max_overhead, total_bytes=total_bytes, memory=memory)
        return cls(budget=budget, max_overhead=max_overhead)

    @property
    def is_minimum(self) -> bool:
        """Whether the lowest peak is asked for, whatever it costs."""
        return isinstance(self.budget, str) and self.budget.strip().lower() == MINIMUM

    @property
    def budget_bytes(self) -> int | None:
        """The highest peak allowed; None where the lowest is asked for."""
        return None if self.budget is None or self.is_minimum else self._parsed()

    def most_seconds(self, plain_seconds: float) -> float:
        """Return the recompute seconds allowed: any number where no overhead was given.

        Raises:
            BudgetError: an overhead is a share of the plain step's seconds, and there are none.
        """
        if self.max_overhead is None:
            return math.inf
        if not plain_seconds:
            raise BudgetError(
                f"max_overhead={self.max_overhead} is a share of the plain step's seconds, and the profile has none; "
                'give a budget, such as "8GB", or record the step again'
            )
        return self.max_overhead * plain_seconds

    def __str__(self) -> str:
        """What was asked, for people."""
        if self.max_overhead is not None:
            return f"the lowest peak within a recompute overhead of {self.max_overhead:.4g}"
        if self.is_minimum:
            return "the lowest peak"
        if self.total_bytes is not None:
            return f"{self.budget} of the {format_bytes(self.total_bytes)} of {self.memory}"
        return f"{self.budget} bytes" if isinstance(self.budget, int) else f"{self.budget}"

    def _parsed(self) -> int:
        assert self.budget is not None
        return parse_bytes(self.budget, total_bytes=self.total_bytes)


def _check_overhead(overhead: object) -> None:
    number = isinstance(overhead, (int, float)) and not isinstance(overhead, bool)
    if not (number and 0 < overhead < math.inf):  # type: ignore[operator]
        raise BudgetError(
            f"max_overhead is the most recompute seconds over the plain step's seconds, a finite ratio above 0 such as "
            f'0.15 for 15 %, and {overhead!r} is none; budget="min" asks for the lowest peak whatever it costs'
        )
