"""The public door: errors that are raised on purpose come out of it without the frames inside. No torch."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ..solvers.errors import AutockptError, Infeasible
from .terminal import VARIABLE

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=BaseException)


def door(function: Callable[P, R]) -> Callable[P, R]:
    """Make a public function whose errors begin where it was called, with what caused them still attached.

    With AUTOCKPT_VERBOSITY=debug all frames stay.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except AutockptError as error:
            raise bare(_told(error, function, args, kwargs)) from error.__cause__

    call.__module__ = "autockpt"  # where pickles look for it
    return call


def _told(
    error: AutockptError, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AutockptError:
    """Return an error that speaks of a budget as the user wrote it."""
    if not isinstance(error, Infeasible) or error.asked:
        return error
    budget = inspect.signature(function).bind_partial(*args, **kwargs).arguments.get("budget")
    return error.carrying(asked=budget) if isinstance(budget, str) else error


def bare(error: E) -> E:
    """Return an error without the frames that it has come through, where it is one of autockpt's own."""
    if not isinstance(error, AutockptError):
        return error
    return error if os.environ.get(VARIABLE, "").strip().lower() == "debug" else error.with_traceback(None)
