"""Errors that users see; continues the tree of `autockpt.solvers.errors`.

AutockptError (ValueError)
├── BudgetError, Infeasible, InvalidProblem, TooCostly, UnknownSolver     from the solvers
├── GrowthError          `max_batch` is given batches that do not grow with the samples asked for
├── InvalidFile          a profile, plan or frontier file that does not parse or validate
├── MissingExtra         something that is not installed; names the command that installs it
├── NotApplicable        a plan that does not fit the model, or a model that cannot be planned
├── PinError             pins that match nothing, contradict each other, or cannot be honoured
├── ProfilingError       the model cannot be recorded
├── ReplayError          a replay that does not repeat its forward
└── UnknownProfile       a name that no recorded profile has
"""

from __future__ import annotations

from ..solvers.errors import AutockptError


class GrowthError(AutockptError):
    """The function that `max_batch` is given makes batches that do not grow with the samples that it is asked for."""


class InvalidFile(AutockptError):
    """A file that is truncated, of another schema, or whose contents contradict each other."""


class MissingExtra(AutockptError):
    """Something is needed that is not installed; the message has the command that installs it."""


class NotApplicable(AutockptError):
    """A plan that does not fit the model, or a model for which no plan makes sense."""


class PinError(AutockptError):
    """A pin that matches no call, or pins that contradict each other or that no plan can honour."""


class ProfilingError(AutockptError, RuntimeError):
    """The model cannot be recorded; where its own forward or the loss fails, that error is the cause of this one.

    Attributes:
        failed: which part of the user's own code failed, in words; empty if something else did.
    """

    failed: str = ""

    @property
    def own(self) -> BaseException:
        """The error that the user's own code raised, if that failed; else this one."""
        return (self.__cause__ if self.failed else None) or self


class ReplayError(AutockptError, RuntimeError):
    """A replay did not repeat what its forward did, so its gradients would be wrong."""


class UnknownProfile(AutockptError, FileNotFoundError):
    """Neither a file nor a recorded profile has this name. Code that catches `FileNotFoundError` catches this too."""
