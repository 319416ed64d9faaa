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

import inspect
from typing import Any, TypeVar

T = TypeVar("T", bound="_Told")


class AutockptError(ValueError):
    """Base of every error that autockpt raises on purpose."""


class BackendError(AutockptError):
    """HiGHS, which solves integer programmes, cannot be loaded, failed, or answered what cannot be; says how."""


class BudgetError(AutockptError):
    """A budget that does not parse, or that is not a positive number of bytes."""


class InvalidProblem(AutockptError):
    """A problem whose parts contradict each other, such as a span past the last call."""


class UnknownSolver(AutockptError):
    """A solver name that is not in the registry."""


class _Told(AutockptError):
    """Base of the errors that carry figures: pickles, and can be made again with more of them."""

    def carrying(self: T, **more: object) -> T:
        """Return the same error, which carries more besides."""
        return _made(type(self), {**self._parts(), **more})

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (type(self), self._parts())


def _made(kind: type[T], parts: dict[str, Any]) -> T:
    """Make an error from its parts, as pickle does."""
    return kind(**parts)


class Infeasible(_Told):
    """No plan of this solver meets the budget.

    Attributes:
        budget_bytes: what was asked for.
        minimum_bytes: the lowest predicted peak that this solver reached.
        solver: the solver that says so.
        dominated_by: the step at which that lowest peak stands, in words.
        chosen: indices of the candidates that reach it; None where a frontier was asked for it.
        plan: the plan that reaches it, ready for `autockpt.apply`; None where only solvers were asked.
        notes: what kept the solver from looking further, in words.
        pins: those that bind the solver, as they were given.
        unpinned_minimum_bytes: the lowest peak that the solver reaches without them; None where there are none.
        parts: what stands at that lowest peak, and where, an `autockpt.PeakParts`; None where only solvers were
            asked.
        advice: what would help, in sentences that follow from the parts.
    """

    def __init__(
        self,
        *,
        budget_bytes: int,
        minimum_bytes: int,
        solver: str,
        dominated_by: str,
        chosen: tuple[int, ...] | None = None,
        plan: Any = None,
        notes: tuple[str, ...] = (),
        pins: tuple[str, ...] = (),
        unpinned_minimum_bytes: int | None = None,
        parts: Any = None,
        advice: tuple[str, ...] = (),
    ) -> None:
        self.budget_bytes = budget_bytes
        self.minimum_bytes = minimum_bytes
        self.solver = solver
        self.dominated_by = dominated_by
        self.chosen = chosen
        self.plan = plan
        self.notes = notes
        self.pins = pins
        self.unpinned_minimum_bytes = unpinned_minimum_bytes
        self.parts = parts
        self.advice = advice
        reaches, or_unpin = f"reaches is {minimum_bytes:,} bytes, at {dominated_by}", ""
        if unpinned_minimum_bytes is not None:
            reaches = (
                f"reaches with the pins {' and '.join(pins)} is {minimum_bytes:,} bytes, "
                f"{minimum_bytes - budget_bytes:,} too many, and without them {unpinned_minimum_bytes:,} bytes. "
                f"With them it stands at {dominated_by}"
            )
            or_unpin = ", take pins away" if unpinned_minimum_bytes < minimum_bytes else ""
        because = "".join(f" Note that {note}." for note in notes)
        help_ = " ".join(advice) or (
            f"Ask for at least {minimum_bytes:,} bytes{or_unpin}, or lower what stands at that point: a smaller "
            "batch, a shorter sequence, a lighter optimizer."
        )
        consists = f". It consists of {parts}" if parts is not None else ""
        asked = f"solver {solver!r} finds no plan within {budget_bytes:,} bytes"
        super().__init__(f"{asked}: the lowest peak that it {reaches}{consists}. {help_}{because}")


class TooCostly(_Told):
    """No plan of this solver costs as little as was asked.

    Attributes:
        most_seconds: the recompute seconds asked for.
        least_seconds: those of the cheapest plan of this solver that recomputes all that it must.
        solver: the solver that says so.
        chosen: indices of the candidates of that plan.
        plain_seconds: those of the plain step, where the question was a recompute overhead.
        plan: that plan, ready for `autockpt.apply`; None where only solvers were asked.
        pins: those that bind the solver, as they were given.
    """

    def __init__(
        self,
        *,
        most_seconds: float,
        least_seconds: float,
        solver: str,
        chosen: tuple[int, ...],
        plain_seconds: float | None = None,
        plan: Any = None,
        pins: tuple[str, ...] = (),
    ) -> None:
        self.most_seconds = most_seconds
        self.least_seconds = least_seconds
        self.solver = solver
        self.chosen = chosen
        self.plain_seconds = plain_seconds
        self.plan = plan
        self.pins = pins
        asked, least = f"{most_seconds:.3g} recompute seconds", f"{least_seconds:.3g}"
        if plain_seconds:
            asked = f"a recompute overhead of {most_seconds / plain_seconds:.2%}"
            least = f"{least_seconds / plain_seconds:.2%}, {least} seconds of a plain step of {plain_seconds:.3g}"
        with_pins, or_unpin = (f" with the pins {' and '.join(pins)}", ", take pins away") if pins else ("", "")
        or_auto = "" if solver == "auto" else ", ask solver 'auto'"
        super().__init__(
            f"solver {solver!r} finds no plan within {asked}: the cheapest that it makes{with_pins} "
            f"has {least}. Allow for more{or_unpin}{or_auto}."
        )
