"""What one application of a plan has put on modules, for steps whose backward comes after it was taken off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .state import Undo

__all__ = ["Patches"]


class Patches:
    """The forwards that an application of a plan puts on the parts of a model.

    A replay that leaves units alone meets them by these forwards. Another plan may be on the model by then, or none:

        forward ──▶ forward under another plan ──▶ backward of both
        patches     taken off, known here          put on again for each replay

    The root's own is none of them: a replay does not call it, and it leads here.

    Attributes:
        token: the same for all of them.
    """

    __slots__ = ("_off", "token")

    def __init__(self, token: str) -> None:
        self.token = token
        self._off: list[tuple[nn.Module, Callable[..., Any]]] = []

    def took_off(self, module: nn.Module, patch: Callable[..., Any]) -> None:
        """Remember what has been taken off a module."""
        self._off.append((module, patch))

    def put_on(self, undo: Undo) -> None:
        """Put what was taken off on again; append to `undo` what takes it off."""
        for module, patch in self._off:
            own = module.__dict__
            undo.append((own.__setitem__, ("forward", own["forward"])) if "forward" in own else (own.pop, ("forward",)))
            own["forward"] = patch
