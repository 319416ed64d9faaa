"""Errors of our own work around what a model runs: none comes out of an operator.

    operator ──▶ our mode ─┬─ our own work    an error waits here; nothing is watched any more, and the model goes on
                           └─ the operator    its result, or its error, comes out unchanged

C++ calls operators from places that no error can leave (`noexcept`), for one where a strided nested tensor is made.
There an error of ours would end the process, without a word from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .._data.errors import ProfilingError

T = TypeVar("T")

Run = Callable[[], Any]

FAILED = (
    "autockpt's own recorder failed in this step ({}: {}). The step itself ran as the model says. Please report this, "
    "with the code of the forward. A plan by hand needs no recorder (Plan.of)."
)


class Refused(TypeError):
    """Raised by a router that refuses an operator on purpose: it comes out in the operator's place."""


class _Once:
    """Runs something, and remembers what came of it."""

    __slots__ = ("_run", "error", "output", "ran")

    def __init__(self, run: Run) -> None:
        self._run, self.ran = run, False
        self.output: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        self.ran = True
        try:
            self.output = self._run()
        except BaseException as error:
            self.error = error
            raise
        return self.output


class OwnErrors:
    """The first error of our own work in a step, which waits until it can be raised.

    Attributes:
        first: the error; None if there was none. Once there is one, nothing is watched any more.
    """

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: BaseException | None = None

    def around(self, router: Callable[[Run], Any], run: Run) -> Any:
        """Return ``router(run)``, which does work of ours around ``run()``. An error of that work waits.

        Raises:
            Refused: the router refuses.
            BaseException: what ``run()`` raised.
        """
        if self.first is not None:
            return run()
        once = _Once(run)
        try:
            return router(once)
        except Refused:
            raise
        except BaseException as error:
            if error is once.error:
                once.error = None  # it refers to this frame: what that holds would wait for the garbage collector
                raise
            self.first = error
        if (theirs := once.error) is None:
            return once.output if once.ran else run()
        once.error = None
        raise theirs

    def add(self, error: Exception) -> None:
        """Have an error wait, if it is the first."""
        self.first = self.first or error

    def own(self, work: Callable[..., T], *given: Any) -> T | None:
        """Do work of ours. Return None if it fails: its error waits. Interrupts go by."""
        if self.first is not None:
            return None
        try:
            return work(*given)
        except Exception as error:
            self.first = error
            return None

    def interrupt(self) -> None:
        """Raise an interrupt that came during our own work. Called where no operator is running."""
        if self.first is not None and not isinstance(self.first, Exception):
            raise self.first

    def tell(self) -> None:
        """Raise the error that waits, if there is one.

        Raises:
            ProfilingError: it is the cause of this one.
        """
        self.interrupt()
        if self.first is not None:
            words = " ".join(str(self.first).split())
            raise ProfilingError(FAILED.format(type(self.first).__name__, f"{words:.300}")) from self.first
