"""The forward of a model that is held to a budget: before a training step begins, its plan may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from ... import _torch_private
from .members import Handle, patched_forward
from .thread import thread


class Governor(Protocol):
    """Who decides about the plan of a model.

    Attributes:
        handle: what the root's forward knows of the plan that is on the model now.
    """

    handle: Handle

    def before(
        self, model: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Make the plan right for the training step that begins with these arguments of the model's own forward."""

    def close(self) -> None:
        """Let go of what is under way: the model is about to be somebody else's, or does something else than train."""


def governed_forward(
    forward: Callable[..., Any], module: nn.Module, governor: Governor, /, *args: Any, **kwargs: Any
) -> Any:
    """Run `forward`, which is the root's own, under the plan that its governor wants for this step."""
    if _begins_a_training_step(module):
        governor.before(module, forward, args, kwargs)
    elif thread.scope is None and not thread.replays:  # an evaluation is no part of a step that is measured
        governor.close()
    try:
        return patched_forward(forward, module, governor.handle, *args, **kwargs)
    except BaseException:  # neither is a step that failed
        governor.close()
        raise


def _begins_a_training_step(module: nn.Module) -> bool:
    return (
        module.training
        and torch.is_grad_enabled()
        and thread.scope is None  # else another plan's member calls the model
        and not thread.replays
        and not torch.compiler.is_compiling()
        and not _torch_private.transforms_active()
        and not _torch_private.foreign_checkpoint_active()  # which counts what is saved, and recomputes it by itself
        and any(parameter.requires_grad for parameter in module.parameters())
    )
