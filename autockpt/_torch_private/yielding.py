"""Hooks on saved tensors that go out of the way of what allows none, as `torch.func.grad`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .modes import Hooks, outer_hooks, pop_hooks, push_hooks

_autograd = torch._C._autograd


@contextmanager
def yielding_hooks(hooks: Hooks, yielded: Callable[[], None]) -> Iterator[None]:
    """Put hooks on saved tensors inside the block, but where code switches such hooks off.

    Torch refuses to switch them off where some are on, so they are taken away before, and put back after.

    Args:
        hooks: pack and unpack.
        yielded: called as they are taken away.
    """
    switch = _Switch(hooks, yielded)
    push_hooks(*hooks)
    switch.put_on()
    try:
        yield
    finally:
        switch.take_off()
        pop_hooks()


class _Switch:
    """Stands before torch's own switch, or before that of another such block, in this thread or another."""

    def __init__(self, hooks: Hooks, yielded: Callable[[], None]) -> None:
        self._hooks: Hooks | None = hooks
        self._yielded: Callable[[], None] | None = yielded
        self._taken = False
        self._thread = threading.get_ident()

    def put_on(self) -> None:
        self._off: Callable[..., None] = _autograd._saved_tensors_hooks_disable
        self._on: Callable[[], None] = _autograd._saved_tensors_hooks_enable
        self._stand(self.disable, self.enable)

    def take_off(self) -> None:
        """Take this one out of the row: in other threads others may have come before it.

        The compiler's tables may keep it for good, if they are made meanwhile: so it lets go of what it was told.
        """
        self._hooks = self._yielded = None
        before: Any = getattr(_autograd._saved_tensors_hooks_disable, "__self__", None)
        if before is self:
            self._stand(self._off, self._on)
            return
        while isinstance(before, _Switch):
            after: Any = getattr(before._off, "__self__", None)
            if after is self:
                before._off, before._on = self._off, self._on
                return
            before = after

    def disable(self, message: str, fail_if_non_empty: bool = True) -> None:
        on, own, yielded = outer_hooks(), self._hooks, self._yielded
        here = threading.get_ident() == self._thread
        if fail_if_non_empty and here and own and yielded and on is not None and on[0] is own[0]:
            pop_hooks()
            self._taken = True
            yielded()
        self._off(message, fail_if_non_empty)

    def enable(self) -> None:
        self._on()
        if self._taken and self._hooks and threading.get_ident() == self._thread:
            self._taken = False
            push_hooks(*self._hooks)

    @staticmethod
    def _stand(off: Callable[..., None], on: Callable[[], None]) -> None:
        _autograd._saved_tensors_hooks_disable = off
        _autograd._saved_tensors_hooks_enable = on
