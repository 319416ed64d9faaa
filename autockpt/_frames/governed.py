"""The forward of a model that is held to a budget: before a training step begins, its plan may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from .. import _torch_private
from .members import Handle, patched_forward
from .thread import thread

__all__ = ["Governor", "governed_forward"]


class Governor(Protocol):
    """Who decides about the plan of a model.

    Attributes:
        handle: what the root's forward knows of the plan that is on the model now.
    """

    handle: Handle

    def before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the plan right for the training step that begins with these arguments."""

    def close(self) -> None:
        """Let go of what is under way, since the model is about to be somebody else's."""


def governed_forward(
    forward: Callable[..., Any], module: nn.Module, governor: Governor, /, *args: Any, **kwargs: Any
) -> Any:
    """Run `forward`, which is the root's own, under the plan that its governor wants for this step."""
    if _begins_a_training_step(module):
        governor.before(module, args, kwargs)
    return patched_forward(forward, module, governor.handle, *args, **kwargs)


def _begins_a_training_step(module: nn.Module) -> bool:
    return (
        module.training
        and torch.is_grad_enabled()
        and thread.scope is None  # else another plan's member calls the model
        and not thread.replays
        and not torch.compiler.is_compiling()
        and not _torch_private.transforms_active()
    )
