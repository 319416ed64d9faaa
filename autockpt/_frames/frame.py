"""The frame: one execution of a segment, and how it is replayed.

    autograd's nodes ──▶ slots ──▶ frame ──▶ calls, boundary          (──▶ strong, ··▶ weak)
                           ▲·········┘

Slots hold their frame, the frame knows its slots weakly: when autograd has released the last slot, the frame dies at
once, by reference count alone. Its boundary goes with the replay. A replayed value lives on its slot and dies with it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .. import _torch_private
from .._data.errors import ReplayError
from .around import Around, Generator, States
from .leaves import Leaf, Recorded
from .replay import Replay
from .saved import Detached, Look, OwnedSlot, Ref, Slot
from .state import ModuleState
from .trial import Trial


@dataclass(slots=True, eq=False)
class Call:
    """One member's call, with what a replay of it needs.

    Attributes:
        key: the call's key.
        forward: what to call.
        arguments: its arguments, encoded.
        keywords: names of the last of them.
        refs: where the tensors among the arguments come from.
        module: what forward found in its modules.
        around: what was on around it.
        random: generator states to set before it.
        generators: all that it could draw from.
        end: number of slots in the frame when it returned; None if it has not.
        leaves: those inside it; None where all of it is recomputed.
    """

    key: str
    forward: Callable[..., Any]
    arguments: list[Any]
    keywords: tuple[str, ...]
    refs: list[Ref]
    module: ModuleState
    around: Around
    random: States = field(default_factory=list)
    generators: list[Generator] = field(default_factory=list)
    end: int | None = None
    leaves: Recorded | None = None


class Frame:
    """One execution of a segment.

    A backward that keeps its graph has a number, of 0 or more; any other has -1.

    Attributes:
        closed: whether no further call may join; a gradient taken inside forward replays a frame before that.
        calls: the calls so far, in order.
        boundary: the tensors from outside.
        slots: what the calls packed, in order; None for what needs no replay.
        looks: what its slots look like, each once: thousands of objects more would have Python collect garbage.
        trial: what its replay is compared by; None where it is not.
    """

    __slots__ = ("__weakref__", "_lock", "boundary", "calls", "closed", "looks", "slots", "trial")

    def __init__(self, trial: Trial | None = None) -> None:
        self.trial = trial
        self.closed = False
        self.calls: list[Call] = []
        self.boundary: list[Detached] = []
        self.slots: list[weakref.ref[Slot] | None] = []
        self.looks: dict[Look, Look] = {}
        self._lock = threading.RLock()  # backward runs a thread a device

    def replay(self) -> None:
        """Run the calls again and fill every slot that is still alive and empty.

        Raises:
            ReplayError: the calls did not save the same tensors as before.
            RuntimeError: a tensor that they read has been changed in place.
        """
        with self._lock:
            backward = _torch_private.keeping_backward()
            last = self._last_empty(backward)
            if last >= 0:
                if self.trial is None:
                    Replay(self, last, backward).run()
                else:
                    self.trial.replay(self, last, backward)
                # Where every slot that lives is full, it stays so: nothing will ask for another replay.
                if self.closed and backward < 0 and self._last_empty(backward) < 0:
                    self.calls, self.boundary = [], []

    def fill(self, slot: Slot) -> None:
        """Replay the frame, unless another thread has done so since `slot` was found empty.

        Raises:
            ReplayError: the slot is empty after it.
        """
        with self._lock:
            if slot.value is None:
                if slot.given is not None:  # some node reads what it saved twice in one backward
                    for _, other in self.alive():
                        other.given = None
                self.replay()
            if slot.value is None and not (slot.proof and slot.proof.stands):
                raise ReplayError("a replay ended before it reached a tensor that backward needs")

    def alive(self) -> Iterator[tuple[int, Slot]]:
        """Slots that some node still has, with their numbers."""
        for number, reference in enumerate(self.slots):
            slot = None if reference is None else reference()
            if slot is not None:
                yield number, slot

    def call_at(self, number: int) -> Call:
        """The call that fills a slot."""
        return next(call for call in self.calls if call.end is None or call.end > number)

    def _last_empty(self, backward: int) -> int:
        for number in range(len(self.slots) - 1, -1, -1):
            reference = self.slots[number]
            slot = None if reference is None else reference()
            if slot is None or slot.value is not None or slot.given == backward:
                continue
            if slot.proof is None or not slot.proof.stands:
                return number
        return -1


@_torch_private.never_compiled
def unpack(slot: Slot | OwnedSlot | Detached) -> Tensor:
    """Return the tensor that `slot` stands for: autograd calls this as a node reads what it saved."""
    return slot.tensor()


@contextmanager
def watching_replays() -> Iterator[list[tuple[str, ...]]]:
    """Append, for every frame that is replayed inside the block, the keys of its calls and of the leaves met in them.

    Frames of all threads count: backward of a device runs in a thread of its own.
    """
    replayed: list[tuple[str, ...]] = []
    plain = Frame.replay

    def replay(self: Frame) -> None:
        leaves = (entry for call in self.calls if call.leaves is not None for entry in call.leaves.entries)
        met = (leaf.key for leaf in leaves if isinstance(leaf, Leaf))
        replayed.append((*(call.key for call in self.calls), *met))
        plain(self)

    Frame.replay = replay  # type: ignore[method-assign]
    try:
        yield replayed
    finally:
        Frame.replay = plain  # type: ignore[method-assign]
