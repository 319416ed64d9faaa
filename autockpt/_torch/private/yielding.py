"""Saved-tensors hooks that are taken away while code runs that allows none, such as `torch.func.grad`."""

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
    """Put hooks on saved tensors inside the block, except while code switches such hooks off.

    Torch refuses to switch hooks off while some are on. So these are taken away before that, and put back after it.

    Args:
        hooks: pack and unpack.
        yielded: called each time that they are taken away.
    """
    push_hooks(*hooks)
    try:
        with yielding(yielded):
            yield
    finally:
        pop_hooks()


@contextmanager
def yielding(yielded: Callable[[], None]) -> Iterator[None]:
    """Take the innermost hooks that are on now away, inside the block, while code switches such hooks off.

    Args:
        yielded: called each time that they are taken away.
    """
    hooks = outer_hooks()
    assert hooks is not None
    switch = _Switch(hooks, yielded)
    switch.put_on()
    try:
        yield
    finally:
        switch.take_off()


class _Switch:
    """Replaces torch's two functions that switch hooks off and on, and calls what it has replaced.

    That is torch's own, or the switch of another such block, in this thread or another.
    """

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
        """Take this switch out of the chain, in which other threads may have put theirs before it.

        If the compiler's tables are made meanwhile, they keep the switch for good. So it drops the hooks and `yielded`.
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
