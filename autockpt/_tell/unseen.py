"""Noticing that a model trains though none of its own training forwards was seen."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from .. import _torch_private as private


class Unseen:
    """Tells of a backward or an optimizer's step that comes before the first forward, until there is one.

    What a forward has begun before this listens is none of that: one backward and one step may end it.

    Args:
        tell: is told of the model.

    Attributes:
        transformed: whether a transform of torch.func has run a forward, of which none of these is.
        waits: whether it does, for a forward.
    """

    def __init__(self, tell: Callable[[torch.nn.Module], None]) -> None:
        self._tell, self.transformed = tell, False
        self.waits = True
        self._running = False  # whether a backward is
        self._begun: set[str] = set()
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
        """Listen no more: a forward was seen, or the model is not held to a budget any more."""
        self.waits = False
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def comes(self, what: Literal["backward", "step"]) -> None:
        """A backward has ended, or an optimizer has taken a step."""
        self._running = False
        if what in self._begun:
            self._begun.discard(what)
        elif self.waits:
            self.close()
            if (model := self._model()) is not None:
                self._tell(model)

    def again(self) -> None:
        """An optimizer has taken a second step since the last forward: on gradients, it was none that is seen here."""
        model = self._model()
        if model is not None and any(each.is_leaf and each.grad is not None for each in model.parameters()):
            self._tell(model)

    def arrives(self) -> None:
        """A gradient has."""
        if not self._running:
            self._running = True
            private.after_backward(functools.partial(self.comes, "backward"))


def _arrives(unseen: weakref.ref[Unseen], parameter: torch.Tensor) -> None:
    listening = unseen()
    if listening is not None:
        listening.arrives()
