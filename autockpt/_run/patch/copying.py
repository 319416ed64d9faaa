"""Pickles and deep copies of a module that has a patch, by two attributes that lie beside the patch.

pickle, torch.save   __reduce_ex__   the plain module: the file names nothing of autockpt, and needs nothing of it
copy.deepcopy        __deepcopy__    a module with a patch of its own, which its own plan or governor knows

Both are looked up at the instance. Without the second, a deep copy would be made as a pickle is. A part has a third,
`compile`, by which its patch moves around what is compiled (`patches.py`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from ..._calls.found.reference import Reference

ATTRIBUTES = ("__reduce_ex__", "__deepcopy__", "compile")

Own = Callable[[dict[str, Any]], dict[str, Any]]
Finish = Callable[[nn.Module, nn.Module, dict[int, Any]], None]


def take(module: nn.Module) -> None:
    """Take the attributes off a module, if they are there. Attributes of the user's by these names stay."""
    for name in ATTRIBUTES:
        if _is_ours(module.__dict__.get(name)):
            del module.__dict__[name]


def _is_ours(value: object) -> bool:
    return isinstance(value, functools.partial) and any(isinstance(each, Reference) for each in value.args)


def reduced(own: Own, reference: Reference, protocol: Any) -> Any:
    """Reduce a module for a pickle as its class does, without the patch.

    Args:
        own: returns what is in the module's `__dict__` without the patch, given what is in it.
        reference: to the module.
        protocol: pickle's.
    """
    module: Any = reference.to()
    of_class: Any = type(module)
    make, arguments, *rest = of_class.__reduce_ex__(module, protocol)
    if rest and isinstance(rest[0], dict):
        rest[0] = own({name: value for name, value in rest[0].items() if name not in ATTRIBUTES or not _is_ours(value)})
    return make, arguments, *rest


def copied(finish: Finish, reference: Reference, memo: dict[int, Any]) -> Any:
    """Copy a module as `copy.deepcopy` does, with the patch.

    Args:
        finish: is given the module, its copy and the memo, once the copy is made.
        reference: to the module.
        memo: of the copying.
    """
    module: Any = reference.to()
    of_class: Any = type(module)
    if hasattr(of_class, "__deepcopy__"):
        return of_class.__deepcopy__(module, memo)
    make, arguments, state, *_ = of_class.__reduce_ex__(module, 4)
    made = memo[id(module)] = make(*copy.deepcopy(arguments, memo))
    made.__setstate__(copy.deepcopy(state, memo))  # each module has one
    finish(module, made, memo)
    return made
