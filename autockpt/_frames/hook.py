"""The pack hook of a replay, which what the replay saved holds as long as that lives."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from .. import _torch_private


class _Packs(Protocol):
    def pack(self, tensor: Tensor) -> Tensor | None: ...


class PackHook:
    """Leads to a replay while a call of it runs.

    Code of the model's may keep a result, in a list of its own or a global. Through the replay that would lead to the
    frame, and from there perhaps back: a cycle that no collector sees.

    Args:
        replay: is given what the call saves.
    """

    __slots__ = ("_replay",)

    def __init__(self, replay: _Packs) -> None:
        self._replay: _Packs | None = replay

    @_torch_private.never_compiled
    def hook(self, tensor: Tensor) -> Tensor | None:
        assert self._replay is not None
        return self._replay.pack(tensor)

    def let_go(self) -> None:
        """Lead nowhere: the call is over."""
        self._replay = None
