"""Context variables as a forward finds them. A replay finds the items that their lists and dictionaries had then.

    forward    outputs = {"logits": [a]} ── call ──▶ {"logits": [a, b]}     b has forward's graph
    replay     a copy:   {"logits": [a]} ── call ──▶ {"logits": [a, b']}    b' has the replay's: the copy goes with it

Libraries collect the outputs of layers this way. If the replay appended to the list itself, b' would stay in it, and
with b' all that the replay saved.
"""

from __future__ import annotations

import contextvars
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .hollow import Shape

_Leaf = Callable[[Any], Any]

_GONE = "a tensor in a list or dictionary of a context variable, which nothing holds any more"


class Context:
    """The context variables as they are when this is made."""

    __slots__ = ("_collected", "_context")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._collected: list[tuple[contextvars.ContextVar[Any], Any]] = []
        if not len(self._context):  # as mostly
            return
        found = [(variable, value) for variable, value in self._context.items() if type(value) in _COLLECTIONS]
        memo: dict[int, Any] = {}
        for variable, value in found:
            self._collected.append((variable, _copied(value, _taken, memo)))
            self._context.run(variable.set, None)

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a forward with them. What it sets, and what it changes in a collection, is gone afterwards."""
        context = self._context.copy()
        memo: dict[int, Any] = {}
        for variable, collected in self._collected:
            context.run(variable.set, _copied(collected, _given, memo))
        return context.run(forward, *args, **kwargs)


class _Weak:
    """A weak reference to a tensor with a graph. The graph may lead back to the frame, and hold all of forward."""

    __slots__ = ("_shape", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._shape = Shape(tensor, _GONE)

    def tensor(self) -> Tensor:
        tensor = self._tensor()
        return self._shape.leaf() if tensor is None else tensor


def _taken(value: Any) -> Any:
    return _Weak(value) if isinstance(value, Tensor) and value.grad_fn is not None else value


def _given(value: Any) -> Any:
    return value.tensor() if type(value) is _Weak else value


def _copied(value: Any, leaf: _Leaf, memo: dict[int, Any]) -> Any:
    """Copy a collection and the collections in it. A list, dictionary or set that occurs twice is copied once."""
    copy = _COLLECTIONS.get(type(value))
    if copy is None:
        return leaf(value)
    return memo[id(value)] if id(value) in memo else copy(value, leaf, memo)


def _list(value: Any, leaf: _Leaf, memo: dict[int, Any]) -> Any:
    new = memo[id(value)] = deque(maxlen=value.maxlen) if isinstance(value, deque) else []
    new.extend(_copied(each, leaf, memo) for each in value)
    return new


def _dict(value: Any, leaf: _Leaf, memo: dict[int, Any]) -> Any:
    new = memo[id(value)] = value.copy()  # with the factory of a `defaultdict`
    for key, each in value.items():
        new[key] = _copied(each, leaf, memo)
    return new


def _set(value: Any, leaf: _Leaf, memo: dict[int, Any]) -> Any:
    new = memo[id(value)] = {leaf(each) for each in value}
    return new


_COLLECTIONS: dict[type, Callable[[Any, _Leaf, dict[int, Any]], Any]] = {
    list: _list,
    deque: _list,
    dict: _dict,
    defaultdict: _dict,
    OrderedDict: _dict,
    set: _set,
    tuple: lambda value, leaf, memo: tuple(_copied(each, leaf, memo) for each in value),
}
