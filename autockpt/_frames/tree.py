"""Arguments and results taken apart by value, so that a container the caller changes later cannot change a replay."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _torch_private

__all__ = ["Ref", "decode", "encode", "tensors"]


class Ref(NamedTuple):
    """Where a replay finds a tensor.

    Attributes:
        call: number of the frame's call that produces it; `BOUNDARY` where the boundary holds it.
        index: which leaf of that call's result, or which tensor of the boundary.
    """

    call: int
    index: int


class _Node(NamedTuple):
    """A container: how to build it from its decoded children."""

    build: Callable[[list[Any]], Any]
    children: list[Any]


_ATOMS = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size})


def encode(value: Any, visit: Callable[[Tensor], Any]) -> Any:
    """Copy the containers in `value`, with `visit(tensor)` in the place of every tensor.

    Lists, tuples, named tuples, dicts, dataclass instances and whatever is registered with torch's pytree are
    containers; any other object is kept as it is.

    Args:
        value: an argument or a result.
        visit: called on the tensors in order.

    Returns:
        What `decode` turns back into such a value.
    """
    if isinstance(value, Tensor):
        return visit(value)
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple or kind is list:
        return _Node(kind, [encode(child, visit) for child in value])
    if kind is dict or kind is OrderedDict:
        keys = list(value)
        return _Node(lambda children: kind(zip(keys, children, strict=True)), [encode(value[key], visit) for key in keys])
    handlers = _torch_private.container_handlers(kind)
    if handlers is not None:
        flatten, unflatten = handlers
        children, context = flatten(value)
        return _Node(lambda children: unflatten(children, context), [encode(child, visit) for child in children])
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _Node(kind._make, [encode(child, visit) for child in value])  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if hasattr(value, field.name)]
        return _Node(_dataclass_builder(kind, names), [encode(getattr(value, name), visit) for name in names])
    return value


def decode(value: Any, find: Callable[[Ref], Any]) -> Any:
    """Build the value that `encode` took apart, with `find(ref)` for every reference."""
    kind = type(value)
    if kind is Ref:
        return find(value)
    if kind is _Node:
        return value.build([decode(child, find) for child in value.children])
    return value


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in `value`, in the order in which `encode` visits them."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    encode(value, found.append)
    return found


def _dataclass_builder(kind: type, names: list[str]) -> Callable[[list[Any]], Any]:
    def build(children: list[Any]) -> Any:
        instance = object.__new__(kind)  # __init__ and __post_init__ may compute, and ran already
        for name, child in zip(names, children, strict=True):
            object.__setattr__(instance, name, child)
        return instance

    return build
