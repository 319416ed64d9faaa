"""What is known to leave the generators alone: reading their states costs as much as a small operator."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

__all__ = ["QUIET_MODULES", "function_name", "never_draws"]

_OPERATORS = (types.BuiltinFunctionType, types.MethodDescriptorType)

_PLAIN = frozenset({Tensor, nn.Parameter, types.NoneType})
"""Tensors that leave operators as they are, and what stands for a bias that there is not; other classes may compute
anything."""

_QUIET = """
    Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Embedding
    LayerNorm RMSNorm GroupNorm BatchNorm1d BatchNorm2d BatchNorm3d
    ELU GELU Hardsigmoid Hardswish Hardtanh LeakyReLU LogSoftmax Mish PReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax
    Softplus Tanh AdaptiveAvgPool1d AdaptiveAvgPool2d AvgPool1d AvgPool2d MaxPool1d MaxPool2d Upsample
"""

QUIET_MODULES = {
    kind: kind.forward
    for kind in (getattr(nn, name) for name in _QUIET.split())
    if kind.forward.__code__.co_filename == sys.modules[kind.__module__].__file__  # else somebody has replaced it
}
"""Torch's own modules, with their forwards, that do nothing but call operators that never draw. Of a subclass that is
not known: a parametrised module is one, and computes its weights in Python."""


def never_draws(function: Callable[..., Any], leaves: Iterable[Tensor]) -> bool:
    """Whether no call of a function, or of a module's forward, on these tensors can draw random numbers.

    Python code may do anything, but for that of some modules of torch's own.
    """
    if type(function) is types.MethodType:
        module: Any = function.__self__
        quiet = function.__func__ is QUIET_MODULES.get(type(module))
        return quiet and _PLAIN.issuperset(map(type, (*leaves, *module._parameters.values())))
    # A method of an object is not for the cache, which would keep the object.
    quiet = isinstance(function, _OPERATORS) and not _is_bound(function) and _operator_never_draws(function)
    return quiet and _PLAIN.issuperset(map(type, leaves))


def _is_bound(function: Callable[..., Any]) -> bool:
    """Whether a function written in C is a tensor's or another object's, and not a class's or a module's."""
    return not isinstance(getattr(function, "__self__", None), (type, types.ModuleType, types.NoneType))


@functools.lru_cache(maxsize=4096)
def _operator_never_draws(function: Callable[..., Any]) -> bool:
    packet = getattr(torch.ops.aten, function_name(function), None)
    overloads = getattr(packet, "overloads", None)
    if overloads is None:  # no operator has this name; `__eq__` is what any Python object has
        return False
    return not any(torch.Tag.nondeterministic_seeded in getattr(packet, name).tags for name in overloads())


@functools.lru_cache(maxsize=4096)
def function_name(function: Callable[..., Any]) -> str:
    """Return the last part of a torch function's name, as plans write it: ``scaled_dot_product_attention``."""
    name: str = resolve_name(function) or getattr(function, "__name__", str(function))
    return name.rpartition(".")[2]
