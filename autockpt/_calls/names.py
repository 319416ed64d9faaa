"""The name of a torch function in plans and profiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.overrides import resolve_name


@functools.lru_cache(maxsize=4096)
def function_name(function: Callable[..., Any]) -> str:
    """Return the last part of a torch function's name, as plans write it: ``scaled_dot_product_attention``."""
    name: str = resolve_name(function) or getattr(function, "__name__", str(function))
    return name.rpartition(".")[2]
