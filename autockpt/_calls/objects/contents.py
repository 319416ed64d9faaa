"""What the Python objects around a model hold: found by a walk, and put back in place.

    modules ──▶ their __dict__ (attributes, hooks, registries) ──▶ containers and objects in them ──▶ ...
    parameters, buffers, other tensors ──▶ their __dict__ ──▶ ...
    functions (hooks, a loss, methods that code names) ──▶ what they close over, and the globals that they name

This is the one list of what a forward can reach and write, beside the values of tensors. Rehearsals look at it, replays
and recorded steps put it back, and the fuzzer draws from it (tests/fuzz/states.py):

reached         attributes and slots of modules, tensors and objects; containers; closures; defaults and attributes of
                functions; class attributes and descriptors; globals of the files of such code, and of files that it
                names (`counts.seen`); context variables; values of this thread; generators of random numbers; arrays,
                bytes and streams in memory
only seen       positions of generators and iterators: they cannot be put back
not reached     what C extensions keep for themselves; files, sockets, other processes; values of other threads; caches
                of `functools.lru_cache`; methods that are found by names made at run time, and that no code names; code
                of installed packages, where other code calls it and no class of the model is from them; flags (True,
                False) among globals and class attributes

The walk keeps the items of every container that it meets, not copies of them. So a change is found by identity, and the
old items go back into the same list or dictionary, which others may hold too.
"""

from __future__ import annotations

import array
import pickle
import random
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import numpy
import torch

from .code import BY_NAME, BY_TORCH, MAKERS, functions_of, inside, leads_to, names_in, of_library, package_of
from .kinds import ATOMS, CONTAINERS, HELD, NUMBERS, OBJECTS, OTHERS, OWN, RANDOM, REGISTRIES, STREAMS
from .put_back import (
    Kept,
    bind,
    bound,
    fill,
    fill_array,
    fill_bytes,
    fill_dict,
    fill_objects,
    got,
    held_in,
    hold_in,
    hooks_on,
    put_hooks_on,
    rewrite,
    set_back,
    stands,
    state_of,
)

MOST_ITEMS = 100_000
"""Longer containers are put back, but what is inside their items is not looked at."""

MOST_NAME = 100
"""Longer names are cut off."""

MOST_ARRAY_BYTES = 2**26
"""Larger arrays are not copied."""


class Contents:
    """What objects, and everything that can be reached from them, hold now; to be put back later.

    Classes and functions of torch, numpy and Python itself are not entered.

    Args:
        roots: the objects, by name.
        bare: modules whose attributes, and those of whose parameters and buffers, the caller puts back: only what is
            inside the attributes is looked at, and no hooks.
        look: whether only what can be reached is found: nothing is read, and nothing can be put back.

    Attributes:
        tensors: the tensors that were found, parameters and buffers too, each with the name of its place.
        modules: the modules that were found.
        generators: torch's generators that were found.
        objects: the objects of the user's classes, and these classes.
    """

    def __init__(self, roots: Mapping[str, object], bare: Collection[torch.nn.Module] = (), look: bool = False) -> None:
        self._bare, self._looks = set(map(id, bare)), look
        starts = (each if isinstance(each, types.FunctionType) else type(each) for each in (*roots.values(), *bare))
        self._packages = {package_of(str(each.__module__)) for each in starts}
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.modules: list[torch.nn.Module] = []
        self.generators: list[torch.Generator] = []
        self.objects: list[Any] = []
        self._kept: list[Kept] = []
        self._seen: dict[int, object] = {}  # kept alive, so that an id stays its own
        self._names = set(BY_TORCH)  # what code that was met looks up
        self._unnamed: dict[str, list[tuple[str, types.FunctionType]]] = {}  # methods that no such code has named yet
        self._classes: set[type] = set()
        self._ways: dict[type, tuple[_Way, ...]] = {}
        self._todo = list(roots.items())
        while self._todo:
            name, value = self._todo.pop()
            if type(value) not in ATOMS and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._enter(name, value)

    def restore(self, *, states: bool = False) -> None:
        """Put back what changed; with `states`, only what is compared by value, such as generators."""
        for each in self._kept:
            if each.write is not None and (each.state or not states) and each.changed:
                each.write(each.before)

    def lost(self) -> list[str]:
        """Name what changed and cannot be put back as it was."""
        return [each.name for each in self._kept if each.changed and (each.write is None or each.reordered)]

    def changed(self) -> list[str]:
        """Name what holds something else now."""
        return [each.name for each in self._kept if each.changed]

    def _enter(self, name: str, value: Any) -> None:
        """Keep what a value holds, and queue what it leads to."""
        kind = type(value)
        if kind not in self._ways:
            self._ways[kind] = _ways_of(value)
        for enter in self._ways[kind]:
            enter(self, name, value)

    def _mapping(self, name: str, value: dict[Any, Any]) -> None:
        self._keep_items(name, value)
        if len(value) <= MOST_ITEMS:
            self._todo += [(f"{name}.{key}"[:MOST_NAME], item) for key, item in value.items()]

    def _tensor(self, name: str, value: torch.Tensor) -> None:
        self.tensors.append((name, value))
        self._enter(name, vars(value))  # a quantized weight's scales, a counter
        self._slots(name, value)

    def _module(self, name: str, value: torch.nn.Module) -> None:
        self.modules.append(value)
        if self._looks:  # mostly the registries of hooks are empty, and there are many
            self._todo += [(name, each) for key, each in vars(value).items() if key not in OWN or each]
        elif id(value) in self._bare:
            self._todo += [(f"{name}.{key}"[:MOST_NAME], each) for key, each in vars(value).items() if key not in OWN]
            for path, each in (*value._parameters.items(), *value._buffers.items()):
                if each is not None:
                    self._todo += [(f"{name}.{path}.{key}"[:MOST_NAME], inside) for key, inside in vars(each).items()]
                    self._slots(f"{name}.{path}", each)
                    self._hooks_of(f"{name}.{path}", each)
            for key in REGISTRIES:
                self._keep_items(f"the hooks of {name}", vars(value).get(key))
        else:
            self._enter(name, vars(value))
        self._slots(name, value)
        self._class(name, type(value))

    def _hooks_of(self, name: str, tensor: torch.Tensor) -> None:
        """Keep the hooks on a tensor's gradient."""
        for key in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            read, write = partial(hooks_on, tensor, key), partial(put_hooks_on, tensor, key)
            self._keep(f"the hooks on the gradient of {name}", read, write)

    def _keep_items(self, name: str, value: dict[Any, Any] | None) -> None:
        """Keep the items of a dictionary, and queue none of them."""
        if value is not None:
            self._keep(name, lambda: [*value.keys(), *value.values()], partial(fill_dict, value))

    def _container(self, name: str, value: Any) -> None:
        self._keep(name, lambda: [*value], partial(fill, value), is_set=isinstance(value, set))
        if len(value) <= MOST_ITEMS:
            self._todo += [(name, item) for item in value]

    def _array(self, name: str, value: Any) -> None:
        if value.dtype == object and value.size <= MOST_ITEMS:
            self._keep(name, lambda: [*value.flat], partial(fill_objects, value))
            self._items(name, value.flat)
        elif value.nbytes <= MOST_ARRAY_BYTES and value.flags.writeable and not value.dtype.hasobject:
            self._keep(name, value.tobytes, partial(fill_array, value), state=True)

    def _bytes(self, name: str, value: Any) -> None:
        self._keep(name, lambda: bytes(value), partial(fill_bytes, value), state=True)

    def _stream(self, name: str, value: Any) -> None:
        self._keep(name, lambda: (value.getvalue(), value.tell()), partial(rewrite, value), state=True)

    def _context(self, name: str, value: ContextVar[Any]) -> None:
        self._keep(name, partial(held_in, value), partial(hold_in, value))
        self._items(name, held_in(value))

    def _items(self, name: str, value: Iterable[Any]) -> None:
        self._todo += [(name, item) for item in value]

    def _method(self, name: str, value: types.MethodType) -> None:
        self._items(name, (value.__self__, value.__func__))

    def _reference(self, name: str, value: weakref.ref[Any]) -> None:
        self._todo.append((name, value()))

    def _error(self, name: str, value: BaseException) -> None:
        self._items(name, (value.args, vars(value)))

    def _builtin(self, name: str, value: types.BuiltinMethodType) -> None:
        self._todo.append((name, value.__self__))

    def _partial(self, name: str, value: partial[Any]) -> None:
        self._items(name, (value.func, *value.args, *value.keywords.values()))

    def _generator(self, name: str, value: types.GeneratorType[Any, Any, Any]) -> None:
        self._keep(f"the generator {name}", partial(stands, value), None)

    def _keep(
        self,
        name: str,
        read: Callable[[], Any],
        write: Callable[[Any], object] | None,
        *,
        state: bool = False,
        is_set: bool = False,
    ) -> None:
        if not self._looks:
            self._kept.append(Kept(name=name, read=read, write=write, before=read(), state=state, is_set=is_set))

    def _random(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Generator):
            self.generators.append(value)  # the caller puts these back
        elif isinstance(value, random.Random):
            self._keep(name, value.getstate, value.setstate, state=True)
        else:
            get, put = state_of(value)
            self._keep(name, lambda: pickle.dumps(get()), lambda state: put(pickle.loads(state)), state=True)

    def _function(self, name: str, function: types.FunctionType) -> None:
        if of_library(function):
            return
        for cell in function.__closure__ or ():
            self._attribute(name, cell, "cell_contents")
        self._todo += [(name, item) for item in (function.__defaults__, function.__kwdefaults__, vars(function))]
        names = names_in(function.__code__)
        for key in (names - self._names) & self._unnamed.keys():
            self._todo += self._unnamed.pop(key)
        self._names |= names
        self._looked_up(names, function.__globals__, set())

    def _looked_up(self, names: frozenset[str], space: dict[str, Any], within: set[int]) -> None:
        """Keep the globals that some code names; modules among them are looked into by the same names."""
        within.add(id(space))
        for key in names & space.keys():
            value = inside(space[key])
            if isinstance(value, types.FunctionType):
                if leads_to(space, str(value.__module__), self._packages):
                    self._todo.append((key, value))
            elif isinstance(value, type):
                if leads_to(space, str(value.__module__), self._packages):
                    self._class(key, value)
                    makers = [getattr(value, each, None) for each in MAKERS]
                    self._todo += [(key, each) for each in makers if isinstance(each, types.FunctionType)]
            elif isinstance(value, types.ModuleType):
                if id(vars(value)) not in within and leads_to(space, value.__name__, self._packages):
                    self._looked_up(names, vars(value), within)
            elif not key.startswith("__") and _is_data(value) and not self._is_model(value):
                self._keep(key, partial(bound, space, key), partial(bind, space, key))
                self._todo.append((key, value))

    def _is_model(self, value: object) -> bool:
        """Whether a global is the model that the bare modules are parts of: scripts have it under a common name."""
        return isinstance(value, torch.nn.Module) and not self._bare.isdisjoint(map(id, value.modules()))

    def _class(self, name: str, kind: type) -> None:
        """Enter the methods of a class that some code names, its own attributes that are data, and classes in it."""
        meta: type = type(kind)
        for each in (*kind.__mro__, *meta.__mro__):
            if each in self._classes or of_library(each):
                continue
            self._classes.add(each)
            self.objects.append(each)
            for key, value in vars(each).items():
                methods = [(name, function) for function in functions_of(value)]
                if methods and (key in self._names or (key.startswith("__") and key not in BY_NAME)):
                    self._todo += methods
                elif methods:
                    self._unnamed.setdefault(key, []).extend(methods)
                elif isinstance(value, type) and not key.startswith("__"):
                    self._class(f"{each.__qualname__}.{key}", value)
                elif not key.startswith("__") and _is_data(value):
                    self._keep(
                        f"{each.__qualname__}.{key}", partial(bound, vars(each), key), partial(set_back, each, key)
                    )
                    self._todo.append((f"{each.__qualname__}.{key}", value))

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
            self.objects.append(value)
            self._todo.append((name, attributes))
        self._slots(name, value)
        self._class(name, type(value))

    def _slots(self, name: str, value: object) -> None:
        for each in type(value).__mro__:
            slots = () if of_library(each) else vars(each).get("__slots__", ())
            for key in (slots,) if isinstance(slots, str) else slots:
                if key not in ("__dict__", "__weakref__"):
                    private = key.startswith("__") and not key.endswith("__")
                    own = f"_{each.__name__.lstrip('_')}{key}" if private else key  # as Python spells it
                    self._attribute(f"{name}.{own}", value, own)


_Way: TypeAlias = Callable[[Contents, str, Any], None]

_WAYS: tuple[tuple[Any, _Way], ...] = (
    (type, Contents._class),
    (dict, Contents._mapping),
    (torch.Tensor, Contents._tensor),
    (torch.nn.Module, Contents._module),
    (RANDOM, Contents._random),
    (CONTAINERS, Contents._container),
    (numpy.ndarray, Contents._array),
    ((bytearray, array.array), Contents._bytes),
    (STREAMS, Contents._stream),
    ((tuple, frozenset), Contents._items),
    (types.MethodType, Contents._method),
    (types.BuiltinMethodType, Contents._builtin),
    (partial, Contents._partial),
    (types.FunctionType, Contents._function),
    (types.GeneratorType, Contents._generator),
    (ContextVar, Contents._context),
    (weakref.ref, Contents._reference),
    (BaseException, Contents._error),
    (OBJECTS, Contents._object),
)
"""How each kind of value is entered; the first kind that matches counts."""


def _ways_of(value: Any) -> tuple[_Way, ...]:
    """Return how values of a kind are entered; `value` is one of them.

    What is inside comes first, then the attributes that a class of the user's adds. Of torch, numpy and Python itself
    no other classes are entered.
    """
    ways = [enter for kinds, enter in _WAYS if isinstance(value, kinds)][:1]
    own = not isinstance(value, type) and not of_library(type(value))
    if isinstance(value, torch.nn.Module) and isinstance(value, CONTAINERS):
        ways = [Contents._module, *ways] if isinstance(value, dict) else [*ways, Contents._container]
    elif own and not isinstance(value, (torch.nn.Module, torch.Tensor)) and Contents._object not in ways:
        ways.append(Contents._object)
    elif not ways and isinstance(value, Iterator):
        ways.append(Contents._iterator)
    return tuple(ways)


def _is_data(value: object) -> bool:
    """Whether a global or a class attribute is data that a step may change, and no flag and no import."""
    if isinstance(value, (*RANDOM, *CONTAINERS, *OBJECTS, *NUMBERS, *OTHERS, *HELD)):
        return not isinstance(value, bool)  # a flag: it says that a set-up need not be done twice
    return not isinstance(value, (type, types.FunctionType, types.ModuleType)) and not of_library(type(value))
