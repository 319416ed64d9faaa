"""The public door: errors raised on purpose, and those of files, come out of it without the frames inside. No torch."""

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
        except OSError as error:
            if not _is_of_our_file(error):
                raise
            raise bare(error) from None

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
    """Cut the traceback of an error that autockpt raised on purpose, or that a file it read or wrote gave; return it.

    Args:
        error: the error; others are returned as they are.
        but_theirs: whether the traceback stays from the first frame of the user's code on, which may have raised it.
    """
    is_own = isinstance(error, AutockptError) or _is_of_our_file(error)
    if not is_own or os.environ.get(VARIABLE, "").strip().lower() == "debug":
        return error
    trace = error.__traceback__ if but_theirs else None
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _is_of_our_file(error: BaseException) -> bool:
    """Whether it is about a file that autockpt itself read or wrote: it was raised by no other code."""
    trace = error.__traceback__ if isinstance(error, OSError) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and _is_ours(trace)


def _is_ours(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_globals.get("__name__", "")
    return isinstance(name, str) and (name == "contextlib" or name.partition(".")[0] == __name__.partition(".")[0])
