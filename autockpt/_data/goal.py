"""What is asked of a plan: a goal, who looks for it and how long, and what it must keep or recompute. No torch."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

import msgspec

from ..solvers.errors import MEANT_BYTES, BudgetError
from ..solvers.units import format_bytes, parse_bytes, shown
from .offload import Offload
from .text.amounts import Bytes
from .text.keys import patterns

_OTHERS = (
    'budget="min" asks for the lowest peak at one level, "lowest" for the lowest of all, max_overhead=0.15 for the '
    "lowest within 15 % recompute overhead"
)

Patterns = str | Iterable[str]
"""Qualified names of modules, in which ``*`` (dots too), ``?`` and ``[…]`` stand for parts; ``#1`` after a name means
the second call of the module in a step, and none means all of its calls. What follows a slash names torch functions
that the module's code calls, and an empty name means the model. One alone may be given bare."""

SECONDS = 3.0
"""How long a solver searches where nobody says."""

MOST_OVERHEAD = 5.0
"""Of plain steps; who asks for a higher overhead means percent."""


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a plan: exactly one of a budget and a recompute overhead.

    Attributes:
        budget: highest peak of the whole step: bytes, ``"8GB"``, ``"8GiB"``, ``"80%"``; ``"min"`` for the lowest peak
            at one level of recomputing, and the cheapest plan that has it; ``"lowest"`` for the lowest of all, which
            may take several plain steps.
        max_overhead: highest recompute overhead, a ratio, and within it the lowest peak.
        total_bytes: what a budget in percent is a share of; None for any other.
        memory: what memory that is, in words.

    Raises:
        BudgetError: both are given or neither, or what is given makes no sense.
    """

    budget: int | str | None = None
    max_overhead: float | None = None
    total_bytes: Bytes | None = None
    memory: str = "memory"

    def __post_init__(self) -> None:
        overhead: object = self.max_overhead
        if (self.budget is None) == (overhead is None):
            both = f"budget={shown(self.budget)} and max_overhead={shown(overhead)} are given"
            given = "neither is given" if overhead is None else both
            raise BudgetError(f"a plan needs either a budget or max_overhead, and {given}; {_OTHERS}")
        if overhead is not None and not (_is_number(overhead) and 0 < overhead <= sys.float_info.max):
            raise BudgetError(
                "max_overhead is the most recompute seconds over the plain step's seconds, a finite ratio above 0 such "
                f"as 0.15 for 15 %, and {shown(overhead)} is none; "
                'budget="lowest" asks for the lowest peak whatever it costs'
            )
        try:
            _ = self.budget_bytes
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
        """Whether the lowest peak is asked for, at one level of recomputing or of all."""
        return self._word in ("min", "lowest")

    @property
    def is_lowest(self) -> bool:
        """Whether the lowest peak of all is asked for, whatever it costs."""
        return self._word == "lowest"

    @property
    def _word(self) -> str:
        return self.budget.strip().lower() if isinstance(self.budget, str) else ""

    @property
    def budget_bytes(self) -> int | None:
        """The highest peak allowed; None where the lowest is asked for."""
        if self.budget is None or self.is_minimum:
            return None
        return parse_bytes(self.budget, total_bytes=self.total_bytes)

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
            return "the lowest peak" if self.is_lowest else "the lowest peak at one level"
        if self.total_bytes is not None:
            return f"{self.budget} of the {format_bytes(self.total_bytes)} of {self.memory}"
        return f"{self.budget} bytes" if isinstance(self.budget, int) else f"{self.budget}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Patterns of calls that are kept, or recomputed, whatever a solver would choose.

    Attributes:
        keep: calls that must not run again.
        recompute: calls that a segment must run again.
    """

    keep: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()

    @classmethod
    def of(cls, keep: Patterns, recompute: Patterns) -> Pins:
        """Read pins as users write them.

        Raises:
            PinError: one is no text.
        """
        return cls(keep=patterns(keep), recompute=patterns(recompute))

    def __bool__(self) -> bool:
        return bool(self.keep or self.recompute)

    def __iter__(self) -> Iterator[str]:
        """Each kind that there is, as it was given: ``keep='lm_head'``."""
        for option, given in (("keep", self.keep), ("recompute", self.recompute)):
            if given:
                yield f"{option}={(given[0] if len(given) == 1 else given)!r}"


NO_PINS = Pins()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a plan.

    Attributes:
        goal: a budget, the lowest peak, or the lowest within a recompute overhead.
        solver: who chooses; a name in `autockpt.solvers.SOLVERS`.
        seconds: how long the solver may search; candidates take two thirds of that before it, at most.
        pins: what it must keep or recompute.
        offload: where tensors may wait off the device; None where they stay.

    Raises:
        BudgetError: the seconds are no number, or below 0.
    """

    goal: Goal
    solver: str = "auto"
    seconds: float = SECONDS
    pins: Pins = NO_PINS
    offload: Offload | None = None

    def __post_init__(self) -> None:
        refuse_no_seconds(self.seconds)


def refuse_no_seconds(given: object) -> None:
    """Refuse a time to search that is no number, or below 0.

    Raises:
        BudgetError: it is such a one.
    """
    if not (_is_number(given) and given >= 0):
        raise BudgetError(f"a solver searches for a number of seconds such as 3.0, and not for {shown(given)}")


def refuse_percent(max_overhead: float) -> None:
    """Refuse so high an overhead that percent were meant.

    Raises:
        BudgetError: it is so high.
    """
    if MOST_OVERHEAD < max_overhead <= sys.float_info.max:
        meant = f"did you mean {max_overhead / 100:g}" if max_overhead <= 100 * MOST_OVERHEAD else "0.15 is 15 %"
        raise BudgetError(
            f"a recompute overhead of {max_overhead:g} is that many plain steps more in each one; {meant}? The most "
            f"that is looked for is {MOST_OVERHEAD:g}"
        )


def refuse_slip(budget: object, max_overhead: object = None) -> None:
    """Refuse what is a slip for a model: a budget without a unit or below what any has, an overhead in percent.

    Raises:
        BudgetError: it is one.
    """
    # A toy's overhead may be above the most; percent are whole numbers.
    if _is_number(max_overhead) and (isinstance(max_overhead, int) or max_overhead.is_integer()):
        refuse_percent(max_overhead)
    if isinstance(budget, str) and re.fullmatch(r"\s*[1-9][0-9]{0,19}(\.[0-9]{0,9})?\s*", budget, re.ASCII):
        number = budget.strip()
        raise BudgetError(
            f"budget {budget!r} has no unit: write '{number}GB' (10⁹ bytes each), '{number}GiB' (2³⁰), or bytes as an "
            "int, such as 8_000_000_000"
        )
    if type(budget) is int and 0 < budget < MEANT_BYTES:
        raise BudgetError(f"budget {budget} is {budget} bytes, and no model fits: did you mean '{budget}GB'?")


def refuse_no_number(what: str, given: object, least: int) -> None:
    """Refuse what is no whole number, or too low a one.

    Raises:
        BudgetError: it is such a one.
    """
    if type(given) is not int or given < least:
        raise BudgetError(f"{what} is a whole number of at least {least}; this is {shown(given)}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
