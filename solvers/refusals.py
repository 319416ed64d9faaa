"""The errors that amounts and budgets raise: the root of the tree in `errors`, and one branch."""

from __future__ import annotations


class AutockptError(ValueError):
    """Base of every error that autockpt raises on purpose."""


class BudgetError(AutockptError):
    """A budget that does not parse, or that is not a positive number of bytes."""
