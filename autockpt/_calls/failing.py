"""Errors of the user's own code, as it runs on what they gave, told with what that was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from .._data.errors import ProfilingError
from .._torch import private
from ..solvers.units import shown

BATCH = "Give a batch as the model takes it: a tuple by position, a mapping by keyword, else it is the only argument"
LOSS = "Give a function from the model's outputs to a scalar"

USUAL = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What a wrong batch raises. Other classes, also those made of these (memory that is short, a user's own), go by."""


@contextmanager
def failing(what: str, given: Callable[[], str], advice: str) -> Iterator[None]:
    """Say of an error of the user's own code inside the block what it ran on.

    Args:
        what: fails, in words.
        given: says what it ran on.
        advice: what to do, in a sentence.

    Raises:
        ProfilingError: one of Python's usual classes was raised, which is the cause of this one.
    """
    try:
        yield
    except USUAL as error:
        if type(error) not in USUAL:
            raise
        said = " ".join(str(error).split())
        told = ProfilingError(f"{what} raised {type(error).__name__} on {given()}: {said:.300}. {advice}.")
        told.failed = what
        raise told from error


def described(value: object) -> str:
    """Say what an output or a loss is."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {private.sizes(value)}, requires_grad={value.requires_grad}"
    return f"a {type(value).__name__}"


def described_batch(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Say what a batch consists of."""
    parts = [_kind_of(each) for each in args] + [f"{name}={_kind_of(each)}" for name, each in kwargs.items()]
    return f"({', '.join(parts[:6])}{', …' if len(parts) > 6 else ''})" if parts else "no arguments"


def _kind_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{[*private.sizes(value)]}"
    return shown(value, 30)
