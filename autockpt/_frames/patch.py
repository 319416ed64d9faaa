"""A patch: what stands in the place of a module's forward, and does not keep the module alive.

    module.__dict__["forward"] ──▶ partial ──▶ Reference ··▶ module          (──▶ strong, ··▶ weak)

Else the two would be a circle, and a model that nobody has any more would stay on its device until Python collects.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn


class Reference:
    """Leads to a module; its copies and pickles to the copy of that.

    Attributes:
        to: returns the module; None where it is gone.
    """

    def __init__(self, module: nn.Module) -> None:
        self.to = weakref.ref(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference:
        module = self.to()
        return self if module is None else Reference(copy.deepcopy(module, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Reference, (self.to(),)


def patch_over(function: Callable[..., Any], module: nn.Module, *knows: object) -> functools.partial[Any]:
    """Return a patch over the forward that a module has now: it calls ``function(own, reference, *knows, ...)``.

    `own` is the forward that is the module's alone, None where it is its class's. A partial itself, and none of a
    derived class: each of those that is nested costs a recursion more.
    """
    forward = module.forward
    of_class = "forward" not in vars(module) and getattr(forward, "__func__", None) is type(module).forward
    return functools.partial(function, None if of_class else forward, Reference(module), *knows)


def own_forward(patch: functools.partial[Any]) -> Any:
    """Return the forward that is the module's alone; None where it is its class's."""
    return patch.args[0]


def module_of(patch: functools.partial[Any]) -> nn.Module | None:
    """Return the module that a patch is on; None where it is gone."""
    reference: Reference = patch.args[1]
    return reference.to()
