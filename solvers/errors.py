"""Errors that users see, in one tree.

    AutockptError (ValueError)
    ├── BackendError         HiGHS or CBC crashed or answered nonsense, and there is no other to ask
    ├── BudgetError          a budget that does not parse or makes no sense
    ├── Infeasible           no plan meets the budget; carries the minimum reachable bytes
    ├── InvalidProblem       a problem whose parts contradict each other
    ├── ProblemTooLarge      a solver that does not take problems of this size
    └── UnknownSolver        a solver name that does not exist

The torch side adds its own branches in ``autockpt._errors``.
"""

from __future__ import annotations

import inspect
from typing import Any

__all__ = [
    "AutockptError",
    "BackendError",
    "BudgetError",
    "Infeasible",
    "InvalidProblem",
    "ProblemTooLarge",
    "UnknownSolver",
]


class AutockptError(ValueError):
    """Base of every error that autockpt raises on purpose."""


class BackendError(AutockptError):
    """What solves integer programmes failed, or answered what cannot be; says which, and how."""


class BudgetError(AutockptError):
    """A budget that does not parse, or that is not a positive number of bytes."""


class InvalidProblem(AutockptError):
    """A problem whose parts contradict each other, such as a span past the last call."""


class ProblemTooLarge(AutockptError):
    """A problem of a size that this solver does not take."""


class UnknownSolver(AutockptError):
    """A solver name that is not in the registry."""


class Infeasible(AutockptError):
    """No plan of this solver meets the budget.

    Attributes:
        budget_bytes: what was asked for.
        minimum_bytes: the lowest predicted peak that this solver reached.
        solver: the solver that says so.
        dominated_by: the step at which that lowest peak stands, in words.
        chosen: indices of the candidates that reach it; None where the solver does not choose among candidates.
        plan: the plan that reaches it, ready for `autockpt.apply`; None where only solvers were asked.
        notes: what kept the solver from looking further, in words.
        unpinned_minimum_bytes: the lowest peak that the solver reaches without the pins that bind it; None where no
            pins do.
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
        unpinned_minimum_bytes: int | None = None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.minimum_bytes = minimum_bytes
        self.solver = solver
        self.dominated_by = dominated_by
        self.chosen = chosen
        self.plan = plan
        self.notes = notes
        self.unpinned_minimum_bytes = unpinned_minimum_bytes
        reaches, or_unpin = f"reaches is {minimum_bytes:,} bytes, at {dominated_by}", ""
        if unpinned_minimum_bytes is not None:
            reaches = (
                f"reaches with the pins is {minimum_bytes:,} bytes, {minimum_bytes - budget_bytes:,} too many, and "
                f"without them {unpinned_minimum_bytes:,} bytes. With them it stands at {dominated_by}"
            )
            or_unpin = ", take pins away" if unpinned_minimum_bytes < minimum_bytes else ""
        because = "".join(f" Note that {note}." for note in notes)
        super().__init__(
            f"solver {solver!r} finds no plan within {budget_bytes:,} bytes: the lowest peak that it {reaches}. "
            f"Ask for at least {minimum_bytes:,} bytes{or_unpin}, or lower what stands at that point: a smaller "
            f"batch, a shorter sequence, a lighter optimizer.{because}"
        )

    def with_plan(self, plan: object, *, unpinned_minimum_bytes: int | None = None) -> Infeasible:
        """Return the same error, which carries a plan besides, and what the solver reaches without pins."""
        return _infeasible({**self._parts(), "plan": plan, "unpinned_minimum_bytes": unpinned_minimum_bytes})

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(Infeasible).parameters}

    def __reduce__(self) -> tuple[object, ...]:
        return _infeasible, (self._parts(),)


def _infeasible(parts: dict[str, Any]) -> Infeasible:
    """Make an `Infeasible` from its parts, as pickle does."""
    return Infeasible(**parts)
