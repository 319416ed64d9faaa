"""What code leads to: names in it, and functions behind descriptors; and which libraries are not looked into."""

from __future__ import annotations

import sys
import types
from collections.abc import Container
from functools import cached_property, lru_cache, partialmethod
from pathlib import Path
from typing import Any

_LIBRARIES = {"torch", "numpy", "autockpt", *sys.stdlib_module_names} - {"__main__"}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_CACHED = type(lru_cache(len))

BY_TORCH = ("forward", "setup_context")
"""Methods that torch calls by their names."""

MAKERS = ("__init__", "__new__", "__post_init__")
"""Methods that make an object of a class."""

_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__")
BY_NAME = frozenset(
    {*MAKERS, *_PICKLING, "__init_subclass__", "__class_getitem__", "__repr__", "__str__", "__del__", "__dir__"}
)
"""Special methods that no operator calls on an object that is there."""


def of_library(thing: Any) -> bool:
    """Whether a class or a function is one of torch, numpy or Python itself, or ours."""
    return package_of(str(thing.__module__)) in _LIBRARIES


def leads_to(space: dict[str, Any], module: str, models: Container[str]) -> bool:
    """Whether the search goes on from code into a function, class or module that it names.

    Code of an installed package leads to that package alone. Other code leads to the installed packages that classes of
    the model are from. It leads to no others: a logger or a test runner leads to all that it holds.

    Args:
        space: the globals of the code's file.
        module: the name of the module that the function or class is from, or of the module itself.
        models: packages that classes of the model are from.
    """
    package = package_of(module)
    if package in _LIBRARIES:
        return False
    if package == package_of(str(space.get("__name__"))):
        return True
    loaded = sys.modules.get(module)
    is_own = loaded is not None and not _is_installed(vars(loaded))
    return not _is_installed(space) and (package in models or is_own)


def package_of(module: str) -> str:
    """The name of the package that a module of this name lies in."""
    return module.partition(".")[0]


def _is_installed(space: dict[str, Any]) -> bool:
    return not _INSTALLED.isdisjoint(Path(str(space.get("__file__"))).parts)


def functions_of(value: object) -> list[types.FunctionType]:
    """The functions of a method, a property, or another descriptor that goes around functions."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    around = (value.fget, value.fset) if isinstance(value, property) else (value,)
    return [inner for each in around if isinstance(inner := inside(each), types.FunctionType)]


def inside(value: object) -> object:
    """The function that a cached property or a cache of results goes around."""
    if isinstance(value, (cached_property, partialmethod)):
        return value.func
    return value.__wrapped__ if isinstance(value, _CACHED) else value


def names_in(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes in some code and what is defined inside it, and its words for `getattr`."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    words = [each for each in code.co_consts if isinstance(each, str) and each.isidentifier()]
    return frozenset(code.co_names).union(words, *map(names_in, inner))
