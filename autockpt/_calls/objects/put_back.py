"""Reads what objects hold, and puts it back in place."""

from __future__ import annotations

import operator
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy

from ..._torch import private

MISSING = object()
"""The value of a name that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A container, or a generator of random numbers, and what it held.

    Attributes:
        name: of the module or the function that it was found in, with the attribute.
        read: returns what it holds now.
        write: has it hold that again; None where that cannot be done.
        before: what it held.
        state: whether that is one value, such as a generator's state, compared by value; else items, compared by
            identity.
        is_set: whether it is a set.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None
    before: Any
    state: bool
    is_set: bool = False

    @property
    def reordered(self) -> bool:
        """Whether it is a set that has lost items: put back they may stand elsewhere, and `pop` takes another one."""
        return self.is_set and not {*map(id, self.before)} <= {*map(id, self.read())}

    @property
    def changed(self) -> bool:
        now = self.read()
        if self.state:
            return bool(now != self.before)
        return len(now) != len(self.before) or not all(map(operator.is_, now, self.before))


def state_of(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """How the state of one of numpy's generators is read and written; it holds arrays, which compare only as bytes."""
    if isinstance(generator, numpy.random.RandomState):
        return generator.get_state, generator.set_state
    return lambda: generator.bit_generator.state, partial(setattr, generator.bit_generator, "state")


def bound(space: Mapping[str, Any], key: str) -> list[Any]:
    return [space.get(key, MISSING)]


def bind(space: dict[str, Any], key: str, before: list[Any]) -> None:
    space[key] = before[0]


def got(thing: object, key: str) -> list[Any]:
    try:
        return [getattr(thing, key)]
    except (AttributeError, ValueError):  # an empty slot, an empty cell
        return []


def kept_beside(name: str, tensor: Any, *, hooks: bool = False, attributes: bool = False) -> list[Kept]:
    """Return what a leaf holds beside its values: gradient, hooks on it, attributes. All of it can only be seen.

    A forward that adds to a gradient, or lets an inner backward do so, would add to it again in a replay.

    Args:
        name: of the leaf.
        tensor: the leaf.
        hooks: whether nobody else puts its hooks back.
        attributes: whether nobody else puts its attributes back.
    """
    reads = {f"the gradient of {name}": partial(gradient_of, tensor)}
    if hooks:
        for key in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            reads[f"the hooks on the gradient of {name}, {key}"] = partial(hooks_on, tensor, key)
    if attributes:
        reads[f"the attributes of {name}"] = partial(attributes_of, tensor)
    return [Kept(name=each, read=read, write=None, before=read(), state=False) for each, read in reads.items()]


def gradient_of(leaf: Any) -> list[Any]:
    """Return the gradient that a leaf has, and a mark that changes when that is written to."""
    gradient = leaf.grad
    return [] if gradient is None else [gradient, sys.intern(str(private.version(gradient)))]


def attributes_of(tensor: Any) -> list[Any]:
    attributes = vars(tensor)
    return [*attributes.keys(), *attributes.values()]


def hooks_on(tensor: Any, key: str) -> list[Any]:
    hooks = getattr(tensor, key, None) or {}
    return [*hooks.keys(), *hooks.values()]


def put_hooks_on(tensor: Any, key: str, before: list[Any]) -> None:
    hooks = getattr(tensor, key)
    if hooks is not None:  # taken away since, with all hooks: nothing ran twice
        fill_dict(hooks, before)


def held_in(variable: ContextVar[Any]) -> list[Any]:
    try:
        return [variable.get()]
    except LookupError:
        return []


def hold_in(variable: ContextVar[Any], before: list[Any]) -> None:
    """Set a context variable again; one that had no value keeps its new one."""
    if before:
        variable.set(before[0])


def set_back(thing: object, key: str, before: list[Any]) -> None:
    """Set an attribute, or take it away again; also if the class is frozen."""
    kind: Any = type if isinstance(thing, type) else object
    try:
        kind.__setattr__(thing, key, before[0]) if before else kind.__delattr__(thing, key)
    except TypeError:  # a class of an extension has its own way
        setattr(thing, key, before[0]) if before else delattr(thing, key)


def stands(generator: types.GeneratorType[Any, Any, Any]) -> list[Any]:
    """The position of a generator and its local variables: they can be seen, but not put back."""
    frame = generator.gi_frame
    return [] if frame is None else [sys.intern(str(frame.f_lasti)), *frame.f_locals.values()]


def fill_dict(value: dict[Any, Any], before: list[Any]) -> None:
    """Put entries back in their order, without the methods of a subclass."""
    kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    half = len(before) // 2
    entries = dict(zip(before[:half], before[half:], strict=True))
    if list(value) != list(entries):
        for key in list(value):
            kind.__delitem__(value, key)
    for key, item in entries.items():
        kind.__setitem__(value, key, item)


def fill(value: Any, before: Iterable[Any]) -> None:
    if isinstance(value, list):
        list.__setitem__(value, slice(None), before)
    else:
        value.clear()
        value.update(before) if isinstance(value, set) else value.extend(before)


def fill_objects(value: Any, before: list[Any]) -> None:
    for place, item in enumerate(before):
        value.flat[place] = item


def fill_array(value: Any, before: bytes) -> None:
    value[...] = numpy.frombuffer(before, dtype=value.dtype).reshape(value.shape)


def fill_bytes(value: Any, before: bytes) -> None:
    """Have a bytearray or an array of numbers hold these bytes."""
    value[:] = before if isinstance(value, bytearray) else type(value)(value.typecode, before)


def rewrite(value: Any, before: tuple[Any, int]) -> None:
    """Put back the content and the position of a stream in memory."""
    value.seek(0)
    value.truncate()
    value.write(before[0])
    value.seek(before[1])
