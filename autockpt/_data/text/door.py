"""The public door: errors that are raised on purpose come out of it without the frames inside. No torch."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ...solvers.errors import AutockptError, Infeasible
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


def bare(error: E, *, but_theirs: bool = False) -> E:
    """Return an error without the frames that it has come through, where it is one of autockpt's own.

    Args:
        error: the error.
        but_theirs: whether the frames from the first on that is not ours stay: a user's forward may have raised it.
    """
    if not isinstance(error, AutockptError) or os.environ.get(VARIABLE, "").strip().lower() == "debug":
        return error
    trace = error.__traceback__ if but_theirs else None
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _is_ours(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_globals.get("__name__", "")
    return isinstance(name, str) and (name == "contextlib" or name.partition(".")[0] == __name__.partition(".")[0])
