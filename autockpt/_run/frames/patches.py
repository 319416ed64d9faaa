"""What one application of a plan has put on modules, for steps whose backward comes after it was taken off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from .state import Undo


class Patches:
    """The forwards that an application of a plan puts on the parts of a model.

    A replay that leaves units alone meets them by these forwards. Another plan may be on the model by then, or none:

        forward ──▶ forward under another plan ──▶ backward of both
        patches     taken off, known here          put on again for each replay

    The root's own is none of them: a replay does not call it, and it leads here. A replay in a second thread finds them
    on already, and the last takes them off; a forward that another thread runs meanwhile meets them too, and so do
    replays of a third plan.

    Attributes:
        token: the same for all of them.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self._off: list[tuple[nn.Module, Callable[..., Any]]] = []
        self._under: list[tuple[nn.Module, Callable[..., Any] | None]] = []
        self._replays = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Patches, (self.token,)  # a copy of the model has steps of its own

    def took_off(self, module: nn.Module, patch: Callable[..., Any]) -> None:
        """Remember what has been taken off a module."""
        self._off.append((module, patch))

    def put_on(self, undo: Undo) -> None:
        """Put what was taken off on again; append to `undo` what takes it off."""
        if not self._off:
            return
        with self._lock:
            if not self._replays:
                for module, patch in self._off:
                    self._under.append((module, module.__dict__.get("forward")))
                    module.__dict__["forward"] = patch
            self._replays += 1
        undo.append((self._take_off, ()))

    def _take_off(self) -> None:
        with self._lock:
            self._replays -= 1
            if self._replays:
                return
            for module, forward in self._under:
                if forward is None:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = forward
            self._under.clear()
