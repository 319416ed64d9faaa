"""What a method is: how it makes a model's step need less, and how it is taken off again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tests.zoo import Case

__all__ = ["Applied", "Method", "NotHere", "patched"]


class NotHere(Exception):
    """The method does not apply to this model; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A method at work.

    Attributes:
        case: what to train instead of the plain case.
        facts: what the method itself says, for the row: `planning_seconds`, `asked_bytes`, `asked_ratio`, predictions.
    """

    case: Case
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to train with one setting.

    Attributes:
        family: who: ``plain``, ``transformers``, ``uniform``, ...
        setting: with which setting.
        apply: makes a case train this way until the context ends.
        asked: share of the plain activations that it was asked to keep to; None where it takes no budget.
    """

    family: str
    setting: str
    apply: Callable[[Case], AbstractContextManager[Applied]]
    asked: float | None = None


@contextmanager
def patched(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Give modules another forward until the context ends."""
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward
