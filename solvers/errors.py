"""Errors that users see, in one tree.

    AutockptError (ValueError)
    ├── BudgetError          a budget that does not parse or makes no sense
    ├── Infeasible           no plan meets the budget; carries the minimum reachable bytes
    ├── InvalidProblem       a problem whose parts contradict each other
    ├── ProblemTooLarge      a solver that does not take problems of this size
    └── UnknownSolver        a solver name that does not exist

The torch side adds its own branches in ``autockpt._errors``.
"""

from __future__ import annotations

__all__ = ["AutockptError", "BudgetError", "Infeasible", "InvalidProblem", "ProblemTooLarge", "UnknownSolver"]


class AutockptError(ValueError):
    """Base of every error that autockpt raises on purpose."""


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
        unpinned_minimum_bytes: int | None = None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.minimum_bytes = minimum_bytes
        self.solver = solver
        self.dominated_by = dominated_by
        self.unpinned_minimum_bytes = unpinned_minimum_bytes
        reaches, or_unpin = f"reaches is {minimum_bytes:,} bytes, at {dominated_by}", ""
        if unpinned_minimum_bytes is not None:
            reaches = (
                f"reaches with the pins is {minimum_bytes:,} bytes, {minimum_bytes - budget_bytes:,} too many, and "
                f"without them {unpinned_minimum_bytes:,} bytes. With them it stands at {dominated_by}"
            )
            or_unpin = ", take pins away" if unpinned_minimum_bytes < minimum_bytes else ""
        super().__init__(
            f"solver {solver!r} finds no plan within {budget_bytes:,} bytes: the lowest peak that it {reaches}. "
            f"Ask for at least {minimum_bytes:,} bytes{or_unpin}, or lower what stands at that point: a smaller "
            "batch, a shorter sequence, a lighter optimizer."
        )

    def with_pins(self, unpinned_minimum_bytes: int) -> Infeasible:
        """Return the same error, which says besides what the solver reaches without the pins."""
        return _infeasible(
            self.budget_bytes, self.minimum_bytes, self.solver, self.dominated_by, unpinned_minimum_bytes
        )

    def __reduce__(self) -> tuple[object, ...]:
        parts = (self.budget_bytes, self.minimum_bytes, self.solver, self.dominated_by, self.unpinned_minimum_bytes)
        return _infeasible, parts


def _infeasible(
    budget_bytes: int, minimum_bytes: int, solver: str, dominated_by: str, unpinned_minimum_bytes: int | None
) -> Infeasible:
    """Make an `Infeasible` from positional parts, as pickle does."""
    return Infeasible(
        budget_bytes=budget_bytes,
        minimum_bytes=minimum_bytes,
        solver=solver,
        dominated_by=dominated_by,
        unpinned_minimum_bytes=unpinned_minimum_bytes,
    )
