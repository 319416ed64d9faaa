"""What the Python objects around a model hold: found by a walk, and put back in place.

    modules ──▶ their __dict__ (attributes, hooks, registries) ──▶ containers and objects in them ──▶ ...
    functions (hooks, a loss, methods) ──▶ what they close over, and the globals of their own file that they use

The walk keeps the items of every container that it meets, not copies of them. So a change is found by identity, and the
old items go back into the same list or dictionary, which others may hold too.
"""

from __future__ import annotations

import argparse
import array
import io
import operator
import pickle
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch

from .put_back import bind, bound, fill, fill_array, fill_bytes, fill_dict, got, rewrite, set_back, stands, state_of

MOST_ITEMS = 100_000
"""Longer containers are put back, but what is inside their items is not looked at."""

MOST_NAME = 100
"""Longer names are cut off."""

MOST_ARRAY_BYTES = 2**26
"""Larger arrays are not copied."""

_NOT_ENTERED = (types.NoneType, bool, int, float, complex, str, bytes, types.ModuleType, type)
_RANDOM = (torch.Generator, random.Random, numpy.random.RandomState, numpy.random.Generator)
_CONTAINERS = (dict, list, set, deque)
_OBJECTS = (types.SimpleNamespace, argparse.Namespace, threading.local)
_NUMBERS = (int, float, complex, str, tuple)
_STREAMS = (io.StringIO, io.BytesIO)
_OTHERS = (*_STREAMS, bytearray, array.array, Iterator)
_LIBRARIES = {"torch", "numpy", "autockpt", *sys.stdlib_module_names} - {"__main__"}
_OWN = frozenset(torch.nn.Module().__dict__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A container, or a generator of random numbers, and what it held.

    Attributes:
        name: of the module or the function that it was found in, with the attribute.
        read: returns what it holds now.
        write: has it hold that again; None where that cannot be done.
        before: what it held.
        state: whether that is one value, such as a generator's state, compared by value; else items, compared by
            identity.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None
    before: Any
    state: bool

    @property
    def changed(self) -> bool:
        now = self.read()
        if self.state:
            return bool(now != self.before)
        return len(now) != len(self.before) or not all(map(operator.is_, now, self.before))


class Contents:
    """What objects, and everything that can be reached from them, hold now; to be put back later.

    Classes and functions of torch, numpy and Python itself are not entered.

    Args:
        roots: the objects, by name.
        bare: modules whose attributes the caller puts back: only what is inside the attributes is looked at, and no
            hooks.

    Attributes:
        tensors: the tensors that were found, parameters and buffers too, each with the name of its place.
        generators: torch's generators that were found.
    """

    def __init__(self, roots: Mapping[str, object], bare: Iterable[torch.nn.Module] = ()) -> None:
        self._bare = set(map(id, bare))
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.generators: list[torch.Generator] = []
        self._kept: list[_Kept] = []
        self._seen: dict[int, object] = {}  # kept alive, so that an id stays its own
        self._todo = list(roots.items())
        while self._todo:
            name, value = self._todo.pop()
            if not isinstance(value, _NOT_ENTERED) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._enter(name, value)

    def restore(self, *, states: bool = False) -> None:
        """Put back what changed; with `states`, only what is compared by value, such as generators."""
        for each in self._kept:
            if each.write is not None and (each.state or not states) and each.changed:
                each.write(each.before)

    def lost(self) -> list[str]:
        """Name what changed and cannot be put back."""
        return [each.name for each in self._kept if each.write is None and each.changed]

    def changed(self) -> list[str]:
        """Name what holds something else now."""
        return [each.name for each in self._kept if each.changed]

    def _enter(self, name: str, value: Any) -> None:
        """Keep what a value holds, and queue what it leads to."""
        for kinds, enter in _WAYS:
            if isinstance(value, kinds):
                enter(self, name, value)
                return
        if isinstance(value, Iterator) and _of_library(type(value)):
            self._iterator(name, value)
        elif isinstance(value, _OBJECTS) or not _of_library(type(value)):
            self._object(name, value)

    def _mapping(self, name: str, value: dict[Any, Any]) -> None:
        self._keep(name, lambda: [*value.keys(), *value.values()], partial(fill_dict, value))
        if len(value) <= MOST_ITEMS:
            self._todo += [(f"{name}.{key}"[:MOST_NAME], item) for key, item in value.items()]

    def _tensor(self, name: str, value: torch.Tensor) -> None:
        self.tensors.append((name, value))
        if own := vars(value):  # a quantized weight's scales
            self._enter(name, own)

    def _module(self, name: str, value: torch.nn.Module) -> None:
        if id(value) in self._bare:
            self._todo += [(f"{name}.{key}"[:MOST_NAME], each) for key, each in vars(value).items() if key not in _OWN]
        else:
            self._enter(name, vars(value))
        self._class(name, type(value))

    def _container(self, name: str, value: Any) -> None:
        self._keep(name, lambda: [*value], partial(fill, value))
        if len(value) <= MOST_ITEMS:
            self._todo += [(name, item) for item in value]

    def _array(self, name: str, value: Any) -> None:
        if value.nbytes <= MOST_ARRAY_BYTES and value.flags.writeable and not value.dtype.hasobject:
            self._keep(name, value.tobytes, partial(fill_array, value), state=True)

    def _bytes(self, name: str, value: Any) -> None:
        self._keep(name, lambda: bytes(value), partial(fill_bytes, value), state=True)

    def _stream(self, name: str, value: Any) -> None:
        self._keep(name, lambda: (value.getvalue(), value.tell()), partial(rewrite, value), state=True)

    def _items(self, name: str, value: Iterable[Any]) -> None:
        self._todo += [(name, item) for item in value]

    def _method(self, name: str, value: types.MethodType) -> None:
        self._items(name, (value.__self__, value.__func__))

    def _builtin(self, name: str, value: types.BuiltinMethodType) -> None:
        self._todo.append((name, value.__self__))

    def _partial(self, name: str, value: partial[Any]) -> None:
        self._items(name, (value.func, *value.args, *value.keywords.values()))

    def _generator(self, name: str, value: types.GeneratorType[Any, Any, Any]) -> None:
        self._keep(f"the generator {name}", partial(stands, value), None)

    def _keep(
        self, name: str, read: Callable[[], Any], write: Callable[[Any], object] | None, *, state: bool = False
    ) -> None:
        self._kept.append(_Kept(name=name, read=read, write=write, before=read(), state=state))

    def _random(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Generator):
            self.generators.append(value)  # the caller puts these back
        elif isinstance(value, random.Random):
            self._keep(name, value.getstate, value.setstate, state=True)
        else:
            get, put = state_of(value)
            self._keep(name, lambda: pickle.dumps(get()), lambda state: put(pickle.loads(state)), state=True)

    def _function(self, name: str, function: types.FunctionType) -> None:
        if _of_library(function):
            return
        for cell in function.__closure__ or ():
            self._attribute(name, cell, "cell_contents")
        self._todo += [(name, item) for item in (function.__defaults__, function.__kwdefaults__, vars(function))]
        space = function.__globals__
        for key in _names(function.__code__) & space.keys():
            value = space[key]
            if isinstance(value, types.FunctionType) and value.__globals__ is space:
                self._todo.append((key, value))
            elif isinstance(value, type) and value.__module__ == function.__module__:
                self._class(key, value)
            elif not key.startswith("__") and _is_data(value, function.__module__):
                self._keep(key, partial(bound, space, key), partial(bind, space, key))
                self._todo.append((key, value))

    def _class(self, name: str, kind: type) -> None:
        """Enter the methods of a class, and its own attributes that are data."""
        for each in kind.__mro__:
            if id(each) in self._seen or _of_library(each):
                continue
            self._seen[id(each)] = each
            for key, value in vars(each).items():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                if isinstance(function, types.FunctionType):
                    self._todo.append((name, function))
                elif not key.startswith("__") and _is_data(value, each.__module__):
                    self._attribute(f"{each.__qualname__}.{key}", each, key)

    def _attribute(self, name: str, thing: object, key: str) -> None:
        """Keep an attribute that is in no writable dictionary, such as a slot or a closure's cell."""
        self._keep(name, partial(got, thing, key), partial(set_back, thing, key))
        self._todo += [(name, item) for item in got(thing, key)]

    def _iterator(self, name: str, value: Any) -> None:
        """Keep the position of an iterator: it can be seen, but not put back."""
        try:
            self._keep(f"the iterator {name}", lambda: repr(value.__reduce__()[1:]), None, state=True)
        except (TypeError, NotImplementedError):
            return  # generators, and iterators of a DataLoader, do not tell

    def _object(self, name: str, value: Any) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._todo.append((name, attributes))
        for each in type(value).__mro__:
            slots = vars(each).get("__slots__", ())
            for key in (slots,) if isinstance(slots, str) else slots:
                if key not in ("__dict__", "__weakref__"):
                    self._attribute(f"{name}.{key}", value, key)
        if callable(value):
            self._class(name, type(value))


_WAYS: tuple[tuple[Any, Callable[[Contents, str, Any], None]], ...] = (
    (dict, Contents._mapping),
    (torch.Tensor, Contents._tensor),
    (torch.nn.Module, Contents._module),
    (_RANDOM, Contents._random),
    (_CONTAINERS, Contents._container),
    (numpy.ndarray, Contents._array),
    ((bytearray, array.array), Contents._bytes),
    (_STREAMS, Contents._stream),
    ((tuple, frozenset), Contents._items),
    (types.MethodType, Contents._method),
    (types.BuiltinMethodType, Contents._builtin),
    (partial, Contents._partial),
    (types.FunctionType, Contents._function),
    (types.GeneratorType, Contents._generator),
)
"""How each kind of value is entered; the first kind that matches counts."""


def _of_library(thing: Any) -> bool:
    """Whether a class or a function is one of torch, numpy or Python itself, or ours."""
    return str(thing.__module__).partition(".")[0] in _LIBRARIES


def _is_data(value: object, module: str) -> bool:
    """Whether a global or a class attribute is data that a step may change, and no flag and no import."""
    if isinstance(value, (*_RANDOM, *_CONTAINERS, *_OBJECTS, *_NUMBERS, *_OTHERS, torch.Tensor, numpy.ndarray)):
        return not isinstance(value, bool)  # a flag: it says that a set-up need not be done twice
    return not isinstance(value, (type, types.FunctionType)) and type(value).__module__ == module


def _names(code: types.CodeType) -> set[str]:
    """The names that some code, and what is defined inside it, may look up among the globals of its file."""
    inside = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inside))
