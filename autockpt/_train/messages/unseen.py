"""Notices that a model trains although none of its own training forwards was seen."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from ..._torch import private


class Unseen:
    """Tells of the first backward or optimizer step, if it comes before any training forward was seen.

    A step may be under way when listening begins. So one backward and one optimizer step are let pass if a gradient or
    a graph exists then.

    Args:
        tell: called with the model.

    Attributes:
        inside: what to tell of a forward that ran inside something in which none is seen as training; None if none did.
        waits: whether no training forward was seen so far.
    """

    def __init__(self, tell: Callable[[torch.nn.Module], None]) -> None:
        self._tell = tell
        self.inside: str | None = None
        self.waits = True
        self._running = False  # whether a backward is running
        self._begun: set[str] = set()  # what still belongs to a step from before listening
        self._hooks: list[Any] = []

    def listen(self, model: torch.nn.Module) -> None:
        """Listen from now on, unless a forward was seen before."""
        self._model = weakref.ref(model)
        if not self.waits or self._hooks:
            return
        trained = [each for each in model.parameters() if each.requires_grad]
        if any(each.is_leaf and (each.grad is not None or private.graph_is_alive(each)) for each in trained):
            self._begun = {"backward", "step"}
        hook = functools.partial(_arrives, weakref.ref(self))
        self._hooks = [each.register_post_accumulate_grad_hook(hook) for each in trained if each.is_leaf]

    def close(self) -> None:
        """Stop listening: a forward was seen, or the budget was taken off the model."""
        self.waits = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def comes(self, what: Literal["backward", "step"]) -> None:
        """Note that a backward has ended, or that an optimizer has taken a step."""
        self._running = False
        if what in self._begun:
            self._begun.discard(what)
        elif self.waits:
            self.close()
            if (model := self._model()) is not None:
                self._tell(model)

    def again(self) -> None:
        """Note a second optimizer step since the last seen forward. If there are gradients, an unseen forward ran."""
        model = self._model()
        if model is not None and any(each.is_leaf and each.grad is not None for each in model.parameters()):
            self._tell(model)

    def arrives(self) -> None:
        """Note that a gradient of a parameter arrives: a backward is running."""
        if not self._running:
            self._running = True
            private.after_backward(functools.partial(self.comes, "backward"))


def _arrives(unseen: weakref.ref[Unseen], parameter: torch.Tensor) -> None:
    listening = unseen()
    if listening is not None:
        listening.arrives()
