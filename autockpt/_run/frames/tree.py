"""Arguments and results taken apart by value, so that a container the caller changes later cannot change a replay."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import _torch_private

__all__ = ["CONTAINERS", "decode", "encode", "kept_whole", "not_simple", "tensors"]

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
    encoder = None
    for value in values:
        if isinstance(value, Tensor):
            templates.append(_leaf(len(leaves)))
            leaves.append(value)
        elif type(value) in _ATOMS:
            templates.append(value)
        else:
            encoder = encoder or _Encoder(leaves)
            templates.append(encoder.encode(value))
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


def not_simple(templates: Iterable[Any]) -> list[Any]:
    """Return those of what `encode` returned that stand for no tensor and are no plain value: mostly there is none."""
    return [template for template in templates if type(template) not in _SIMPLE]


def kept_whole(templates: Iterable[Any]) -> list[Any]:
    """Return what `encode` left as it is, inside containers too."""
    todo, found, seen = list(templates), [], set()
    for template in todo:
        if type(template) is not _Whole and type(template) is not _Shell:
            found.append(template)
        elif id(template) not in seen:
            seen.add(id(template))
            todo.extend(template.children)
    return found


class _Leaf(int):
    """The number of a tensor."""


_SIMPLE = _ATOMS | {_Leaf}

_FIRST_LEAVES = tuple(_Leaf(number) for number in range(64))


def _leaf(number: int) -> _Leaf:
    return _FIRST_LEAVES[number] if number < len(_FIRST_LEAVES) else _Leaf(number)


class _Whole:
    """A container built from its finished children: tuples, and what torch's pytree knows."""

    __slots__ = ("build", "children")

    def __init__(self, build: Callable[[list[Any]], Any], children: list[Any]) -> None:
        self.build = build
        self.children = children


class _Shell:
    """A container that exists before its children, since it may be referred to twice or contain itself.

    Its children are first its items, then its attributes. No __init__ runs: it may compute, and has run already.
    """

    __slots__ = ("_keys", "_kind", "_names", "children")

    def __init__(self, kind: type, keys: list[Any] | None, names: list[str]) -> None:
        self._kind = kind
        self._keys = keys
        self._names = names
        self.children: list[Any] = []

    def new(self) -> Any:
        return self._kind.__new__(self._kind)  # type: ignore[call-overload]

    def fill(self, new: Any, children: list[Any]) -> None:
        items = len(children) - len(self._names)
        if self._keys is not None:
            put = OrderedDict.__setitem__ if isinstance(new, OrderedDict) else dict.__setitem__
            for key, child in zip(self._keys, children, strict=False):
                put(new, key, child)
        elif items:
            list.extend(new, children[:items])
        for name, child in zip(self._names, children[items:], strict=True):
            object.__setattr__(new, name, child)


CONTAINERS = (_Whole, _Shell)
"""What stands for a container among templates."""


class _Encoder:
    """One walk through a value. Keeps the containers it meets alive, so that their ids stay theirs."""

    __slots__ = ("_depth", "_leaves", "_seen")

    def __init__(self, leaves: list[Tensor]) -> None:
        self._leaves = leaves
        self._seen: dict[int, tuple[Any, _Shell]] = {}
        self._depth = 0

    def encode(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            self._leaves.append(value)
            return _leaf(len(self._leaves) - 1)
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is tuple:
            return _Whole(tuple, [self.encode(child) for child in value])
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        if kind is list:
            return self._fill(value, _Shell(list, None, []), value)
        if kind is dict or kind is OrderedDict:
            return self._fill(value, _Shell(kind, list(value), []), list(value.values()))
        handlers = _torch_private.container_handlers(kind)
        if handlers is not None:
            flatten, unflatten = handlers
            children, context = flatten(value)
            return _Whole(lambda children: unflatten(children, context), [self.encode(child) for child in children])
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return _Whole(kind._make, [self.encode(child) for child in value])
        contents = _contents(value, kind) if self._depth < _DEPTH else None
        if contents is None:
            return value
        self._depth += 1
        shell = self._fill(
            value,
            _Shell(kind, contents.keys, list(contents.attributes)),
            [*contents.items, *contents.attributes.values()],
        )
        self._depth -= 1
        return shell

    def _fill(self, value: Any, shell: _Shell, children: list[Any]) -> _Shell:
        self._seen[id(value)] = (value, shell)
        shell.children = [self.encode(child) for child in children]
        return shell


class _Contents(NamedTuple):
    """What a plain instance consists of; `keys` where it is a dict."""

    keys: list[Any] | None
    items: list[Any]
    attributes: dict[str, Any]


def _contents(value: Any, kind: type) -> _Contents | None:
    """Return the contents of `value`; None if it is more than items and attributes, or known by its identity."""
    if isinstance(value, (nn.Module, enum.Enum, types.ModuleType)) or callable(value):
        return None
    if kind.__module__.startswith("torch."):  # process groups, meshes
        return None
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if hasattr(value, field.name)]
        return _Contents(None, [], {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {}))
    if kind is types.SimpleNamespace:
        return _Contents(None, [], vars(value))
    return _reduced(value) if _is_reduced_by_object(kind) else None


def _is_reduced_by_object(kind: type) -> bool:
    """Whether `copy` and `pickle` take instances apart as any object or `OrderedDict`, with no say of the class."""
    reduce: object = kind.__reduce__
    return (
        getattr(kind, "__reduce_ex__") is object.__reduce_ex__  # noqa: B009 - mypy thinks that it never is
        and (reduce is object.__reduce__ or reduce is OrderedDict.__reduce__)
        and not any(hasattr(kind, name) for name in ("__getnewargs__", "__getnewargs_ex__", "__setstate__"))
    )


def _reduced(value: Any) -> _Contents | None:
    try:
        _, _, state, items, pairs = value.__reduce_ex__(2)
    except TypeError:  # it has state in C
        return None
    if state is None and items is None and pairs is None:  # a sentinel
        return None
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    found = dict(pairs) if pairs is not None else None
    return _Contents(
        None if found is None else list(found),
        list(items or ()) if found is None else list(found.values()),
        {**(attributes or {}), **(slots or {})},
    )


def _decode(template: Any, leaves: Sequence[Any], built: dict[int, Any]) -> Any:
    kind = type(template)
    if kind is _Leaf:
        return leaves[template]
    if kind is _Whole:
        return template.build([_decode(child, leaves, built) for child in template.children])
    if kind is _Shell:
        if id(template) not in built:
            built[id(template)] = new = template.new()
            template.fill(new, [_decode(child, leaves, built) for child in template.children])
        return built[id(template)]
    return template
