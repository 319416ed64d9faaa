"""The names and numbers of calls in plans and profiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch.overrides import resolve_name

_Name = TypeVar("_Name")


def numbered(counts: dict[_Name, int], name: _Name) -> int:
    """Number a call: count it, and return how many of its name there were before. Replays number calls so, too."""
    before = counts.get(name, 0)
    counts[name] = before + 1
    return before


@functools.lru_cache(maxsize=4096)
def function_name(function: Callable[..., Any]) -> str:
    """Return the last part of a torch function's name, as plans write it: ``scaled_dot_product_attention``."""
    name: str = resolve_name(function) or getattr(function, "__name__", str(function))
    return name.rpartition(".")[2]
