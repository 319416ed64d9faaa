"""Errors that users see, in one tree.

    AutockptError (ValueError)
    ├── BackendError         HiGHS cannot be loaded, crashed or answered nonsense
    ├── BudgetError          a budget that does not parse or makes no sense
    ├── Infeasible           no plan meets the budget; carries the minimum reachable bytes
    ├── InvalidProblem       a problem whose parts contradict each other
    ├── TooCostly            no plan costs as little as asked; carries the least recompute seconds
    └── UnknownSolver        a solver name that does not exist

The torch side adds its own branches in ``autockpt._data.errors``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

from .refusals import AutockptError as AutockptError
from .refusals import BudgetError as BudgetError

T = TypeVar("T", bound="_Told")

MEANT_BYTES = 512
"""A budget of fewer bytes is a mistake: gigabytes were meant."""

UNTOUCHED = "The model is as it was, and training can go on."

MOST_ADVICE = 2
"""Sentences of advice in a message."""


class BackendError(AutockptError):
    """HiGHS, which solves integer programmes, cannot be loaded, failed, or gave an impossible answer; says which."""


class InvalidProblem(AutockptError):
    """A problem whose parts contradict each other, such as a span past the last call."""


class UnknownSolver(AutockptError):
    """A solver name that is not in the registry."""


@dataclass(kw_only=True, eq=False, repr=False)
class _Told(AutockptError):
    """Base of the errors that carry figures. They can be pickled, and copied with more figures."""

    def __post_init__(self) -> None:
        super().__init__(self.said())

    def said(self) -> str:
        """The message, from the figures."""
        raise NotImplementedError

    def carrying(self: T, **more: object) -> T:
        """Return a copy of this error that carries more."""
        return replace(self, **more)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), **{each.name: getattr(self, each.name) for each in fields(self)}), ()


@dataclass(kw_only=True, eq=False, repr=False)
class Infeasible(_Told):
    """No plan of this solver meets the budget.

    Attributes:
        budget_bytes: what was asked for.
        minimum_bytes: the lowest predicted peak that this solver reached.
        solver: the solver that says so.
        dominated_by: the step that has that lowest peak, in words.
        chosen: indices of the candidates that reach it; None where a frontier was asked for it.
        plan: the plan that reaches it, ready for `autockpt.apply`; None where only solvers were asked.
        one_level: the plan with the lowest peak at one level, where that of `plan` is lower since replays go in parts;
            else None.
        notes: what kept the solver from looking further, in words.
        pins: those that bind the solver, as they were given.
        unpinned_minimum_bytes: the lowest peak that the solver reaches without them; None where there are none.
        parts: what that lowest peak consists of, and where it is, an `autockpt.PeakParts`; None where only solvers were
            asked.
        own_replays: what the model recomputes itself, which no plan changes, in words; empty if nothing.
        advice: what would help, in sentences that follow from the parts; the message has the first ones.
        asked: the budget as the user wrote it, where that is text.
        margin: share of a budget that `autockpt.apply` leaves to the device's allocator.
        model_untouched: whether a model was given, which is as it was.
    """

    budget_bytes: int
    minimum_bytes: int
    solver: str
    dominated_by: str
    chosen: tuple[int, ...] | None = None
    plan: Any = None
    one_level: Any = None
    notes: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    unpinned_minimum_bytes: int | None = None
    parts: Any = None
    own_replays: str = ""
    advice: tuple[str, ...] = ()
    asked: str = ""
    margin: float = 0.0
    model_untouched: bool = False

    def said(self) -> str:
        """Say what was asked, what was reached, what that peak consists of and why, and what would help."""
        return "\n  ".join(self._lines())

    def _place(self) -> str:
        """Say in which step the lowest peak is."""
        step: str = self.parts.step
        return step if step.startswith("the ") else f"the {step}"

    def _lines(self) -> Iterator[str]:
        from .units import format_bytes, is_decimal  # which raises errors of here

        decimal = is_decimal(self.asked)
        asked = self.asked or format_bytes(round(self.budget_bytes / (1 - self.margin)))
        if self.budget_bytes < MEANT_BYTES and not self.asked.rstrip().endswith("%"):
            asked = f"{self.budget_bytes} is {self.budget_bytes} bytes (did you mean '{self.budget_bytes}GB'?)"
        lowest = format_bytes(self.minimum_bytes, decimal=decimal)
        pins = ""
        if self.unpinned_minimum_bytes is not None:
            without = format_bytes(self.unpinned_minimum_bytes, decimal=decimal)
            pins = f" with {' and '.join(self.pins)}, and {without} without"
        by = "" if self.solver == "auto" else f" by solver {self.solver!r}"
        own = " while the model recomputes parts itself" if self.own_replays else ""
        yield f"budget {asked}: the lowest peak that can be reached{by}{own} is {lowest}{pins}"
        if self.own_replays:
            yield f"{self.own_replays[0].upper()}{self.own_replays[1:]}"
        if self.parts is not None:
            yield f"there stand {self.parts.shares()}, in {self._place()}"
            if kept := self.parts.kept_words(decimal=decimal):
                yield f"Kept are {kept}"
        else:
            yield f"it stands at {self.dominated_by}"
        yield self._budgets(decimal) + (
            "" if self.advice else ", or lower what stands there: a smaller batch, a lighter optimizer"
        )
        yield from self.advice[1 : 1 + MOST_ADVICE - bool(self.notes) - bool(self.own_replays)]
        if self.notes:
            yield f"Note that {self.notes[0]}"
        if self.model_untouched:
            yield UNTOUCHED

    def _budgets(self, decimal: bool) -> str:
        """Say which budgets have plans, and what they cost: the lowest at one level, and the lowest of all."""
        from .units import at_least

        def budget(minimum_bytes: int) -> str:
            return repr(at_least(math.ceil(minimum_bytes / (1 - self.margin)), decimal=decimal))

        price = f": {_price(self.plan)}" if _price(self.plan) else ""
        if self.one_level is None:
            return f"Ask for budget={budget(self.minimum_bytes)}, or for 'min'{price}"
        one = f"budget={budget(self.one_level.peak_bytes)}, {_price(self.one_level)}"
        return f"Ask for {one}; or for {budget(self.minimum_bytes)}, or 'lowest', where replays go in parts{price}"


def _price(plan: Any) -> str:
    """Say how much slower the step is under a plan; empty where no seconds are known."""
    return f"{plan.recompute_overhead:.0%} slower" if plan is not None and plan.plain_seconds else ""


@dataclass(kw_only=True, eq=False, repr=False)
class TooCostly(_Told):
    """No plan of this solver costs as little as was asked.

    Attributes:
        most_seconds: the recompute seconds asked for.
        least_seconds: the recompute seconds of this solver's cheapest plan that recomputes all that it must.
        solver: the solver that says so.
        chosen: indices of the candidates of that plan.
        plain_seconds: the seconds of the plain step, where a recompute overhead was asked.
        plan: that plan, ready for `autockpt.apply`; None where only solvers were asked.
        pins: those that bind the solver, as they were given.
        model_untouched: whether a model was given, which is as it was.
    """

    most_seconds: float
    least_seconds: float
    solver: str
    chosen: tuple[int, ...]
    plain_seconds: float | None = None
    plan: Any = None
    pins: tuple[str, ...] = ()
    model_untouched: bool = False

    def said(self) -> str:
        """Say what was asked, what the cheapest plan has, and what helps."""
        asked, least = f"{self.most_seconds:.3g} recompute seconds", f"{self.least_seconds:.3g}"
        if self.plain_seconds:
            asked = f"a recompute overhead of {self.most_seconds / self.plain_seconds:.2%}"
            plain = f"of a plain step of {self.plain_seconds:.3g}"
            least = f"{self.least_seconds / self.plain_seconds:.2%}, {least} seconds {plain}"
        with_pins = f" with the pins {' and '.join(self.pins)}" if self.pins else ""
        or_unpin = ", take pins away" if self.pins else ""
        or_auto = "" if self.solver == "auto" else ", ask solver 'auto'"
        return (
            f"solver {self.solver!r} finds no plan within {asked}: the cheapest that it makes{with_pins} "
            f"has {least}. Allow for more{or_unpin}{or_auto}." + (f"\n  {UNTOUCHED}" if self.model_untouched else "")
        )
