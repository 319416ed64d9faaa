"""The frame: one execution of a segment, and how it is replayed.

    autograd's nodes ──▶ slots ──▶ frame ──▶ calls, boundary          (──▶ strong, ··▶ weak)
                           ▲·········┘

Slots hold their frame, the frame knows its slots weakly: when autograd has released the last slot, the frame dies at
once, by reference count alone. Its boundary goes with the replay. A replayed value lives on its slot and dies with it.
"""

from __future__ import annotations

import threading
import weakref

from torch import Tensor

from ... import _torch_private
from ..._data.errors import ReplayError
from .call import Call
from .replay import Replay
from .slots import Held, Kept, OwnedSlot, Slot


class Frame:
    """One execution of a segment.

    Attributes:
        closed: whether no further call may join; a gradient taken inside forward replays a frame before that.
        calls: the calls so far, in order.
        boundary: the tensors from outside.
        slots: what the calls packed, in order; None for what needs no replay.
    """

    __slots__ = ("__weakref__", "_lock", "boundary", "calls", "closed", "slots")

    def __init__(self) -> None:
        self.closed = False
        self.calls: list[Call] = []
        self.boundary: list[Held] = []
        self.slots: list[weakref.ref[Slot] | None] = []
        # Backward runs a thread a device, and a replay swaps buffers of the one module for both.
        self._lock = threading.RLock()

    def replay(self) -> None:
        """Run the calls again and fill every slot that is still alive and empty.

        Raises:
            ReplayError: the calls did not save the same tensors as before.
            RuntimeError: a tensor that they read has been changed in place.
        """
        with self._lock:
            last = self._last_empty()
            if last >= 0:
                Replay(self, last).run()
                # Where every slot that lives is full, it stays so: nothing will ask for another replay.
                if self.closed and self._last_empty() < 0:
                    self.calls, self.boundary = [], []

    def replayed(self, slot: Slot) -> Tensor:
        """Return the value of `slot`, which had none, from a replay."""
        with self._lock:
            if slot.value is None:  # else another thread was faster
                self.replay()
            if slot.value is None:
                raise ReplayError("a replay ended before it reached a tensor that backward needs")
            return slot.value

    def _last_empty(self) -> int:
        for number in range(len(self.slots) - 1, -1, -1):
            reference = self.slots[number]
            slot = None if reference is None else reference()
            if slot is not None and slot.value is None:
                return number
        return -1


@_torch_private.never_compiled
def unpack(slot: Slot | OwnedSlot | Kept) -> Tensor:
    """Return the tensor that `slot` stands for."""
    return slot.tensor()
