"""Doubles of modules: what leads to a module leads to its double, wherever it stands in what a double has."""

from __future__ import annotations

import copy
import functools
import types
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from .saved import Detached
from .thread import Handle

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, set, frozenset, nn.Parameter, Tensor, Handle})
_DICTS = frozenset({dict, OrderedDict})
_OWN = frozenset(nn.Module().__dict__)
"""What every module has: among them only children, parameters, buffers and hooks lead to modules."""

_WHOLE = (Tensor, type, types.ModuleType, types.BuiltinFunctionType)
_DEPTH = 4
"""What is nested deeper in attributes is taken as it is."""


class Rebinding:
    """Finds modules in attributes, methods, partial functions, closures, hooks and containers.

    What leads to no module that has a double stays the same object.
    """

    __slots__ = ("_doubles", "_found")

    def __init__(self, doubles: dict[int, Any]) -> None:
        """Take the doubles, by the ids of their modules."""
        self._doubles = doubles
        self._found: dict[int, Any] = {}

    def contents(self, contents: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes of a module for its double, but for what makes it a module."""
        new = contents.copy()
        for name in contents.keys() - _OWN:
            if type(contents[name]) not in _ATOMS:
                new[name] = self(contents[name])
        return new

    def __call__(self, value: Any, depth: int = _DEPTH) -> Any:
        """Return `value`, or one like it that leads to doubles."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is types.MethodType:
            owner = self(value.__self__, depth)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, nn.Module):
            return self._doubles.get(id(value), value)
        if not depth or isinstance(value, _WHOLE) or (kind is types.FunctionType and value.__closure__ is None):
            return value
        if id(value) not in self._found:
            self._found[id(value)] = value  # where it contains itself
            self._found[id(value)] = self._taken_apart(value, depth - 1)
        return self._found[id(value)]

    def _taken_apart(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is Detached:
            return value.leaf()
        if kind in (list, tuple):
            items = [self(item, depth) for item in value]
            return value if _all_same(items, value) else kind(items)
        if kind in _DICTS:
            items = [self(item, depth) for item in value.values()]
            return value if _all_same(items, value.values()) else kind(zip(value, items, strict=True))
        if kind is functools.partial:
            parts = [value.func, *value.args, *value.keywords.values()]
            func, *items = [self(part, depth) for part in parts]
            if _all_same((func, *items), parts):
                return value
            n_args = len(value.args)
            return functools.partial(func, *items[:n_args], **dict(zip(value.keywords, items[n_args:], strict=True)))
        if kind is types.FunctionType:
            return self._function(value, depth)
        attributes = getattr(value, "__dict__", None)
        if not attributes or kind.__module__.startswith("torch."):
            return value
        items = [self(item, depth) for item in attributes.values()]
        if _all_same(items, attributes.values()):
            return value
        new = copy.copy(value)
        vars(new).update(zip(attributes, items, strict=True))
        return new

    def _function(self, function: types.FunctionType, depth: int) -> types.FunctionType:
        """Return a function whose closure leads to doubles."""
        try:
            found = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # one is empty yet
            return function
        items = [self(item, depth) for item in found]
        if _all_same(items, found):
            return function
        cells = tuple(map(types.CellType, items))
        new = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
        )
        new.__kwdefaults__ = function.__kwdefaults__
        vars(new).update(vars(function))
        return new


def _all_same(items: Any, others: Any) -> bool:
    return all(one is other for one, other in zip(items, others, strict=True))
