"""Hearing of the steps that optimizers take on a model's parameters, by torch's own hook: nobody searches for them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class OptimizerSteps:
    """Tells of each step of an optimizer that trains a model, as it ends, until it is closed or forgotten.

    Args:
        model: the model, which is not kept alive.
        tell: is told of the optimizer, and whether this was its first step here.
    """

    def __init__(self, model: torch.nn.Module, tell: Callable[[Optimizer, bool], None]) -> None:
        self._model, self._tell = weakref.ref(model), tell
        self._heard: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        hook = register_optimizer_step_post_hook(functools.partial(_stepped, weakref.ref(self)))
        self.close = weakref.finalize(self, hook.remove)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that have taken a step, and that somebody still has."""
        return [optimizer for optimizer, ours in self._heard.items() if ours]

    def stepped(self, optimizer: Optimizer) -> None:
        """Tell of a step, if it is one of this model's."""
        first = optimizer not in self._heard
        if first:
            self._heard[optimizer] = self._trains(optimizer)
        if self._heard[optimizer]:
            self._tell(optimizer, first)

    def _trains(self, optimizer: Optimizer) -> bool:
        """Whether it has a parameter of the model's in groups of its own: wrappers pass on another's."""
        model = self._model()
        own = set() if model is None else {id(parameter) for parameter in model.parameters()}
        groups = vars(optimizer).get("param_groups", ())
        return any(id(parameter) in own for group in groups for parameter in group["params"])


def _stepped(
    steps: weakref.ref[OptimizerSteps], optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    listening = steps()
    if listening is not None:
        listening.stepped(optimizer)
