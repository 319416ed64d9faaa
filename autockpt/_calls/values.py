"""Arguments and results taken apart by value, so that a container the caller changes later cannot change a replay.

This is not done by pickle: with tensors as persistent ids, it runs a subclass's ``__init__`` and ``__setitem__`` again,
copies keys, and takes up to three times as long for the few tensors of a call.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._torch import private

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
_DEPTH = 4
"""Objects nested deeper in objects are kept as they are (a cache of caches of layers needs three)."""


def encode(values: Iterable[Any], leaves: list[Tensor]) -> list[Any]:
    """Copy the containers in `values`, and move the tensors to the end of `leaves`.

    Lists, tuples, dicts, dataclass and other plain instances (a key-value cache), and whatever is registered with
    torch's pytree count as containers; modules, callables and torch's own objects are kept as they are.

    Args:
        values: arguments or results.
        leaves: where the tensors go, in order.

    Returns:
        What `decode` turns back into such values.
    """
    templates = []
    seen: dict[int, tuple[Any, _Container]] = {}
    for value in values:
        if isinstance(value, Tensor):  # nearly all are: to call `_encode` costs as much as all else here
            number = len(leaves)  # as in `_leaf`
            templates.append(_FIRST_LEAVES[number] if number < _MANY else _Leaf(number))
            leaves.append(value)
        elif type(value) in _ATOMS:
            templates.append(value)
        else:
            templates.append(_encode(value, leaves, seen, _DEPTH))
    return templates


def decode(templates: Iterable[Any], leaves: Sequence[Any]) -> list[Any]:
    """Build the values that `encode` took apart, with `leaves` in the places of their tensors."""
    built: dict[int, Any] = {}
    return [leaves[each] if type(each) is _Leaf else _decode(each, leaves, built) for each in templates]


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in `value`, in the order in which `encode` finds them."""
    if isinstance(value, Tensor):
        return [value]
    leaves: list[Tensor] = []
    encode(value if type(value) is tuple else (value,), leaves)
    return leaves


def only_tensors(values: Iterable[Any]) -> list[Tensor] | None:
    """Return the tensors in `values` if all else are plain values, as is nearly always so; else None."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif type(value) not in _ATOMS:
            return None
    return found


def not_simple(templates: Iterable[Any]) -> list[Any]:
    """Return what `encode` returned without tensors and plain values: mostly nothing is left."""
    return [template for template in templates if type(template) not in _SIMPLE]


def kept_whole(templates: Iterable[Any]) -> list[Any]:
    """Return all templates that are no containers, also those inside containers.

    These are plain values, objects that `encode` kept as they are, and the numbers of tensors.
    """
    todo, found, seen = list(templates), [], set()
    for template in todo:
        if type(template) is not _Container:
            found.append(template)
        elif id(template) not in seen:
            seen.add(id(template))
            todo.extend(template.children)
    return found


class _Leaf(int):
    """The number of a tensor."""


_SIMPLE = _ATOMS | {_Leaf}

_MANY = 64

_FIRST_LEAVES = tuple(_Leaf(number) for number in range(_MANY))


def _leaf(number: int) -> _Leaf:
    return _FIRST_LEAVES[number] if number < _MANY else _Leaf(number)


class _Container:
    """A container: built from its finished children, or, since it may contain itself, made empty and then filled."""

    __slots__ = ("build", "children", "fill")

    def __init__(self, build: Callable[..., Any], fill: Callable[[Any, list[Any]], None] | None = None) -> None:
        self.build = build
        self.fill = fill
        self.children: list[Any] = []


def _encode(value: Any, leaves: list[Tensor], seen: dict[int, tuple[Any, _Container]], depth: int) -> Any:
    """Encode one value. `seen` keeps the containers met alive, so that no other gets their id."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return _leaf(len(leaves) - 1)
    kind = type(value)
    if kind in _ATOMS:
        return value
    if id(value) in seen:
        return seen[id(value)][1]
    if kind is tuple:
        new, children = _Container(tuple), value
    elif kind is list:
        new, children = _Container(list, list.extend), value
    elif kind is dict or kind is OrderedDict:
        new, children = _Container(kind, partial(_fill, list(value), ())), value.values()
    elif (handlers := private.container_handlers(kind)) is not None:
        flatten, unflatten = handlers
        children, context = flatten(value)
        new = _Container(lambda children: unflatten(children, context))
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        new, children = _Container(kind._make), value
    else:
        contents = _contents(value, kind) if depth else None
        if contents is None:
            return value
        keys, items, attributes = contents
        new = _Container(partial(kind.__new__, kind), partial(_fill, keys, tuple(attributes)))
        children = [*items, *attributes.values()]
        depth -= 1
    if new.fill is not None:
        seen[id(value)] = value, new
    new.children = [_encode(child, leaves, seen, depth) for child in children]
    return new


def _contents(value: Any, kind: type) -> tuple[list[Any] | None, list[Any], dict[str, Any]] | None:
    """Take a plain instance apart into the keys of a dict, items and attributes.

    Returns:
        None if it is more than that, or if its identity matters. The keys are None if it is no dict.
    """
    if isinstance(value, (nn.Module, enum.Enum, types.ModuleType)) or callable(value):
        return None
    if kind.__module__.startswith("torch."):  # process groups, meshes
        return None
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if hasattr(value, field.name)]
        return None, [], {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {})
    if kind is types.SimpleNamespace:
        return None, [], vars(value)
    return _reduced(value) if _is_reduced_by_object(kind) else None


def _reduced(value: Any) -> tuple[list[Any] | None, list[Any], dict[str, Any]] | None:
    """Take an instance apart as `copy` and `pickle` do; returns as `_contents`."""
    try:
        _, _, state, items, pairs = value.__reduce_ex__(2)
    except TypeError:  # it has state in C
        return None
    if state is None and items is None and pairs is None:  # a sentinel
        return None
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    attributes = {**(attributes or {}), **(slots or {})}
    if pairs is None:
        return None, list(items or ()), attributes
    found = dict(pairs)
    return list(found), list(found.values()), attributes


def _is_reduced_by_object(kind: type) -> bool:
    """Whether `copy` and `pickle` take instances apart like any object or `OrderedDict`, by no method of the class."""
    reduce: object = kind.__reduce__
    return (
        getattr(kind, "__reduce_ex__") is object.__reduce_ex__  # noqa: B009 - mypy thinks that it never is
        and (reduce is object.__reduce__ or reduce is OrderedDict.__reduce__)
        and not any(hasattr(kind, name) for name in ("__getnewargs__", "__getnewargs_ex__", "__setstate__"))
    )


def _fill(keys: list[Any] | None, names: Sequence[str], new: Any, children: list[Any]) -> None:
    """Put items into a new instance, then attributes. No __init__ runs: it may compute, and has run already."""
    items = len(children) - len(names)
    if keys is not None:
        put = OrderedDict.__setitem__ if isinstance(new, OrderedDict) else dict.__setitem__
        for key, child in zip(keys, children, strict=False):
            put(new, key, child)
    elif items:
        list.extend(new, children[:items])
    for name, child in zip(names, children[items:], strict=True):
        object.__setattr__(new, name, child)


def _decode(template: Any, leaves: Sequence[Any], built: dict[int, Any]) -> Any:
    kind = type(template)
    if kind is _Leaf:
        return leaves[template]
    if kind is not _Container:
        return template
    if template.fill is None:
        return template.build([_decode(child, leaves, built) for child in template.children])
    if id(template) not in built:
        built[id(template)] = new = template.build()
        template.fill(new, [_decode(child, leaves, built) for child in template.children])
    return built[id(template)]
