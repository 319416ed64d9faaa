"""The forward that is put on a root whose plan a governor chooses step by step."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling

from ..._calls.found.reference import Reference
from ..._calls.values import tensors
from ..._data.text.door import bare
from ..._torch import private
from ...solvers.errors import AutockptError
from ..frames.routing import GONE, patched_forward
from ..frames.table import Handle
from ..frames.thread import thread


class Governs(Protocol):
    """A governor: it chooses the plan of a model, step by step.

    Attributes:
        handle: what all patches of the model share.
    """

    handle: Handle

    def train(
        self, root: nn.Module, name: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a training forward of a root; `forward` is the root's own."""

    def pause(self, name: str, arguments: object) -> None:
        """End a recording that is under way: the root of this name now runs a forward that is no training."""

    def resume(self, model: nn.Module) -> None:
        """Hold the model to its budget again."""

    def close(self) -> None:
        """Release everything; the plan is taken off the model."""


def governed_forward(
    own: Callable[..., Any] | None,
    reference: Reference,
    name: str,
    governor: Governs,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a root's forward as its governor wants it: `own`, or its class's if that is None."""
    module = reference.to()
    if module is None:
        raise ReferenceError(GONE)
    if is_compiling():  # what a governor does is no graph
        return patched_forward(own, reference, name, governor.handle, *args, **kwargs)
    forward = types.MethodType(type(module).forward, module) if own is None else own
    if not governor.handle.patched:  # the plan was taken off, and a wrapper over this forward calls it
        return forward(*args, **kwargs)
    if _trains(module, (args, kwargs)):
        try:
            return governor.train(module, name, forward, args, kwargs)
        except AutockptError as error:  # where no plan is found, users see the line that called their model
            raise bare(error, but_theirs=True) from error.__cause__
    if thread.scope is None and not thread.replays:
        governor.pause(name, (args, kwargs))
    return patched_forward(own, reference, name, governor.handle, *args, **kwargs)


def _trains(module: nn.Module, arguments: object) -> bool:
    """Whether a forward may be one of training: parameters or arguments require gradients; the mode does not matter."""
    return (
        torch.is_grad_enabled()
        and thread.scope is None  # else another plan's member calls the model
        and not thread.replays
        and not private.transforms_active()
        and not private.foreign_checkpoint_active()  # it counts what is saved, and recomputes it by itself
        and (
            any(parameter.requires_grad for parameter in module.parameters())
            or any(tensor.requires_grad for tensor in tensors(arguments))
        )
    )
