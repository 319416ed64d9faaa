"""The errors that amounts and budgets raise; `errors` has the tree of which these are the root and a branch."""

from __future__ import annotations


class AutockptError(ValueError):
    """Base of every error that autockpt raises on purpose."""


class BudgetError(AutockptError):
    """A budget that does not parse, or that is not a positive number of bytes."""
