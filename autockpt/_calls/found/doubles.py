"""Doubles of modules. A replay runs them if the modules are no longer as forward found them.

A double is an object of a module's class that has what forward found. Wherever this refers to a module that has a
double, the double refers to that double.
"""

from __future__ import annotations

import copy
import functools
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ..._data.errors import ReplayError
from ..._torch import private
from .around import Undo
from .held import Detached
from .reference import Reference
from .spared import Spared
from .tree import HELD, HOOKS, NOTHING, Contents, FoundModule, Tree

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, set, frozenset})
_DICTS = frozenset({dict, OrderedDict})
_OWN = frozenset(nn.Module().__dict__)
"""Attributes that every module has. Of these, only children, parameters, buffers and hooks lead to modules."""

_WHOLE = (type, types.ModuleType, types.BuiltinFunctionType)
_DEPTH = 4
"""Attributes are searched for modules to this depth. What is nested deeper stays as it is."""


def doubled(
    tree: Tree,
    forward: Callable[..., Any],
    instead: dict[int, Tensor],
    tags: dict[int, Contents],
    gone: dict[str, dict[int, Any]],
    undo: Undo,
) -> Callable[..., Any]:
    """Return the forward of a member's double.

    Args:
        tree: the modules; the member is the first.
        forward: the member's own.
        instead: tensors that replace others, by the id of the one that is replaced.
        tags: Python attributes for some of these, by the same ids.
        gone: hooks that ran around every module's forward then and do not now.
        undo: gets the call that gives the doubles up (see `_let_go`).

    Raises:
        ReplayError: no double can be made now.
    """
    if private.parametrizations_are_cached():
        raise ReplayError(
            "torch.nn.utils.parametrize.cached() is on. It knows modules by their addresses, so a replay cannot run "
            "copies of them. Leave it before backward, or keep the call."
        )
    doubles: list[nn.Module] = [*map(object.__new__, map(type, tree.modules))]
    undo.append((_let_go, (tree.modules, doubles)))
    others = {**instead, **dict(zip(map(id, tree.modules), doubles, strict=True))}
    rebind, copies = _Rebinding(others), tree.copies()
    for key, own in tags.items():
        vars(instead[key]).update(rebind.contents(own))
    held: dict[int, Contents] = {}
    for key, content in copies.items():
        every = content.values()
        same = others.keys().isdisjoint(map(id, every))
        held[key] = content.copy() if same else dict(zip(content, map(others.get, map(id, every), every), strict=True))
    for double, found in zip(doubles, tree.contents, strict=True):
        contents = rebind.contents(found)
        for name in HELD:
            contents[name] = held.get(id(found[name])) or {}
        hooks, pre_hooks = found["_forward_hooks"], found["_forward_pre_hooks"]
        if gone or hooks or pre_hooks or id(hooks) in copies or id(pre_hooks) in copies:
            for name in HOOKS:
                own = {**gone.get(name, NOTHING), **copies.get(id(found[name]), NOTHING)}
                contents[name] = OrderedDict((number, rebind(hook)) for number, hook in own.items())
        object.__setattr__(double, "__dict__", contents)
    own_forward: Callable[..., Any] = rebind(forward)
    return own_forward


def restore(tree: Iterable[FoundModule]) -> None:
    """Restore modules to the very objects that were found."""
    for module, contents, *inner, hooks in tree:
        now = module.__dict__
        _restore(now, contents)
        for name, held in zip(HELD, inner, strict=True):
            _restore(now[name], held)
        for name in HOOKS:
            _restore(now[name], hooks[name])


class _Rebinding:
    """Replaces modules by their doubles in attributes, methods, partial functions, closures, hooks and containers.

    A value that leads to no module with a double stays the same object.
    """

    __slots__ = ("_doubles", "_found")

    def __init__(self, doubles: dict[int, Any]) -> None:
        """Take the doubles of modules, and the tensors that replace others, by the ids of the originals."""
        self._doubles = doubles
        self._found: dict[int, Any] = {}

    def contents(self, contents: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes of a module for its double. Those that every module has are as in the module."""
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
        if isinstance(value, (nn.Module, Tensor)):
            return self._doubles.get(id(value), value)
        if kind is Reference:
            double = self._doubles.get(id(value.to()))
            return value if double is None else Reference(double)
        if kind is Detached or kind is Spared:
            return value.leaf()
        if not depth or isinstance(value, _WHOLE) or (kind is types.FunctionType and value.__closure__ is None):
            return value
        if id(value) not in self._found:
            self._found[id(value)] = value  # in case it contains itself
            parts, build = _taken_apart(value)
            items = [part if type(part) in _ATOMS else self(part, depth - 1) for part in parts]
            if not all(map(operator.is_, items, parts)):
                self._found[id(value)] = build(items)
        return self._found[id(value)]


def _taken_apart(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the items that a value refers to, and a function that makes a value like it from other items."""
    kind = type(value)
    if kind in (list, tuple):
        return [*value], kind
    if kind in _DICTS:
        return [*value.values()], lambda items: kind(zip(value, items, strict=True))
    if kind is functools.partial:
        n, names = 1 + len(value.args), value.keywords
        parts = [value.func, *value.args, *names.values()]
        return parts, lambda items: functools.partial(*items[:n], **dict(zip(names, items[n:], strict=True)))
    if kind is types.FunctionType:
        try:
            return [cell.cell_contents for cell in value.__closure__ or ()], functools.partial(_closed_over, value)
        except ValueError:  # a cell is still empty
            return [], list
    attributes = getattr(value, "__dict__", None)
    if not attributes or kind.__module__.startswith("torch."):
        return [], list
    return [*attributes.values()], functools.partial(_having, value)


def _closed_over(function: types.FunctionType, items: list[Any]) -> types.FunctionType:
    """Return a copy of a function with other items in its closure."""
    cells = tuple(map(types.CellType, items))
    new = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    new.__kwdefaults__ = function.__kwdefaults__
    vars(new).update(vars(function))
    return new


def _having(value: Any, items: list[Any]) -> Any:
    """Return a copy of an object with other values of its attributes."""
    new = copy.copy(value)
    vars(new).update(zip(vars(value), items, strict=True))
    return new


def _let_go(modules: Sequence[nn.Module], doubles: Sequence[nn.Module]) -> None:
    """Give doubles the attributes of their modules from now on, in case some code has kept a double.

    The methods of a double refer back to it. So without this, what the replay left on it would stay until Python's
    collector runs.
    """
    for module, double in zip(modules, doubles, strict=True):
        object.__setattr__(double, "__dict__", module.__dict__)


def _restore(now: dict[Any, Any], found: dict[Any, Any]) -> None:
    """Restore the entries that were found, one by one: another thread that reads meanwhile finds every one of them.

    Only if their order has changed, each is removed for a moment and set again.
    """
    for name, value in found.items():
        if name not in now or now[name] is not value:
            now[name] = value
    for name in [name for name in now if name not in found]:
        now.pop(name, None)
    if list(now) != list(found):
        for name, value in found.items():
            now.pop(name, None)
            now[name] = value
