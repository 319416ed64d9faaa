"""Notices the steps that optimizers take on a model's parameters, by torch's global hook: no search for optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..._ranks.fsdp import parameters_at_rest

FOREIGN = -1
"""Stands for an optimizer that trains no parameter of the model."""


class OptimizerSteps:
    """Calls `tell` after each step of an optimizer that trains a model, until this is closed or freed.

    Args:
        tell: is given the optimizer.
    """

    def __init__(self, tell: Callable[[Optimizer], None]) -> None:
        self._tell, self._grown = tell, ""
        self._model: weakref.ref[torch.nn.Module] | None = None
        # By optimizer: for how many parameters it has state.
        self._heard: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._hook: weakref.finalize[[], Any] | None = None

    def listen(self, model: torch.nn.Module) -> None:
        """Listen for steps from now on, if not yet; the model is not kept alive."""
        if self._hook is None:
            self._model = weakref.ref(model)
            hook = register_optimizer_step_post_hook(functools.partial(_stepped, weakref.ref(self)))
            self._hook = weakref.finalize(self, hook.remove)

    def close(self) -> None:
        """Stop listening."""
        if self._hook is not None:
            self._hook()
            self._hook = None

    @property
    def model(self) -> torch.nn.Module | None:
        """The model; None before `listen`, and once it is gone."""
        return self._model() if self._model is not None else None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The model's optimizers that have taken a step and are still alive."""
        return [optimizer for optimizer, states in self._heard.items() if states != FOREIGN]

    def grown(self) -> str:
        """Return the class of an optimizer that, since the last call, took its first step or got new parameters.

        Empty if none did.
        """
        grown, self._grown = self._grown, ""
        return grown

    def stepped(self, optimizer: Optimizer) -> None:
        """Handle a step: `tell` is called if the optimizer trains this model."""
        before = self._heard.get(optimizer)
        if before == FOREIGN or (before is None and not self._trains(optimizer)):
            self._heard[optimizer] = FOREIGN
            return
        states = self._heard[optimizer] = len(vars(optimizer).get("state", ()))
        if before is None or states > before:
            self._grown = type(optimizer).__name__
        self._tell(optimizer)

    def _trains(self, optimizer: Optimizer) -> bool:
        """Whether its own groups have a parameter of the model: a wrapper only passes on those of another optimizer."""
        model = self.model
        own = set() if model is None else {id(parameter) for parameter in parameters_at_rest(model)}
        groups = vars(optimizer).get("param_groups", ())
        return any(id(parameter) in own for group in groups for parameter in group["params"])


def blank(optimizer: Optimizer) -> bool:
    """Whether a step now would train nothing: torch.distributed.checkpoint takes such steps to create the state."""
    groups = vars(optimizer).get("param_groups", ())
    return bool(groups) and all("lr" in group and float(group["lr"]) == 0 for group in groups)


def _stepped(
    steps: weakref.ref[OptimizerSteps], optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    listening = steps()
    if listening is not None:
        listening.stepped(optimizer)
