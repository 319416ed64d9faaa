"""The frame: one execution of a segment, and how it is replayed.

    autograd's nodes ──▶ slots ──▶ frame ──▶ calls, boundary          (──▶ strong, ··▶ weak)
                           ▲·········┘

Slots hold their frame, the frame knows its slots weakly (rules 1 and 2 in `__init__`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .. import _torch_private
from .._data.errors import ReplayError
from .._found.around import Around, Generator, States
from .._found.held import Detached, Ref
from .._found.state import ModuleState
from .moved import MovedTensor
from .slots import Fills, Look, OwnedSlot, Slot
from .unit import Units


class Within(NamedTuple):
    """What a replay of a member needs that leaves calls inside it to replays of their own; see `_nested`.

    Attributes:
        handle: that of the model.
        table: what becomes of the calls inside, a `Table`.
        counts: calls so far within the root's call, by qualified name, as the member began.
    """

    handle: Any
    table: Any
    counts: Mapping[str, int]


@dataclass(slots=True, eq=False)
class MemberCall:
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
        units: those inside it that a replay does not run; None where it runs everything.
        cut: level of the part of the frame that begins with it; 0 where none does.
        within: for calls inside it that have replays of their own; None where it has none.
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
    units: Units | None = None
    cut: int = 0
    within: Within | None = None


class Descends(Protocol):
    """Calls that run again and fill no slot.

    Attributes:
        call: the one that runs, or ran last.
    """

    call: MemberCall

    def run(self) -> None:
        """Run them; errors as for `Replayer.replay`."""


class Replayer(Protocol):
    """How one frame is replayed, and what of its forward that needs to see.

    Attributes:
        compares: whether it is to see every tensor that a replay must bring back.
    """

    @property
    def compares(self) -> bool: ...

    def begins(self, call: MemberCall, given: Sequence[Tensor]) -> list[Generator]:
        """See a call before its forward, which is `given` some tensors.

        Returns:
            Generators to watch besides the devices' own.
        """

    def ends(self, call: MemberCall, results: Sequence[Tensor]) -> None:
        """See a call after its forward."""

    def saves(self, slot: Slot, tensor: Tensor) -> None:
        """See a tensor that is dropped: `slot` stands for it."""

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Run the calls again and fill the slots that are alive and empty.

        Args:
            frame: the frame.
            last: number of the last of those slots.
            backward: number of the backward; see `Frame`.

        Raises:
            ReplayError: the calls did not save the same tensors as before.
            RuntimeError: a tensor that they read has been changed in place.
        """

    def descend(self, frame: Frame, descent: Descends) -> bool:
        """Run the parts of a frame but the last, for what they give one another; see `_nested`.

        Returns:
            Whether that went well; else the frame is to be replayed at once.
        """


class Frame:
    """One execution of a segment.

    A backward that keeps its graph has a number, of 0 or more; any other has -1.

    Attributes:
        closed: whether no further call may join; a gradient taken inside forward replays a frame before that.
        calls: the calls so far, in order.
        boundary: the tensors from outside.
        slots: what the calls packed, in order; None for what needs no replay.
        looks: what its slots look like, each once: thousands of objects more would have Python collect garbage.
        replayer: replays it.
        moves: whether some of the boundary waits off the device.
        makes: makes its replay; None for `Replay`.
    """

    __slots__ = ("__weakref__", "_lock", "boundary", "calls", "closed", "looks", "makes", "moves", "replayer", "slots")

    def __init__(self, replayer: Replayer) -> None:
        self.replayer = replayer
        self.closed = self.moves = False
        self.makes: Callable[..., Any] | None = None
        self.calls: list[MemberCall] = []
        self.boundary: list[Detached] = []
        self.slots: list[weakref.ref[Slot] | None] = []
        self.looks: dict[Look, Look] = {}
        self._lock = threading.RLock()  # backward runs a thread a device

    def replay(self) -> None:
        """Run the calls again and fill every slot that is still alive and empty; errors as for `Replayer.replay`."""
        with self._lock:
            backward = _torch_private.keeping_backward()
            last = self._last_empty(backward)
            if last >= 0:
                self.replayer.replay(self, last, backward)
                if self.moves:
                    for held in self.boundary:
                        held.let_go()
                # Where every slot that lives is full, it stays so: nothing will ask for another replay.
                if self.closed and backward < 0 and self._last_empty(backward) < 0:
                    self.calls, self.boundary = [], []

    def fill(self, slot: Slot) -> None:
        """Replay the frame, unless another thread has done so since `slot` was found empty.

        Where it has gone in parts, the part that has the slot is replayed, and may go in parts again.

        Raises:
            ReplayError: the slot is empty after it.
        """
        self.try_to_fill(slot)
        frame: Fills = self
        while frame is not slot.frame:
            frame = slot.frame
            frame.try_to_fill(slot)

    def try_to_fill(self, slot: Slot) -> None:
        """Do so, and leave a slot empty that another frame has by then; errors as for `fill`."""
        with self._lock:
            if slot.frame is self and slot.value is None:
                if slot.given is not None:  # some node reads what it saved twice in one backward
                    for _, other in self.alive():
                        other.given = None
                self.replay()
            if slot.frame is self and slot.value is None and not (slot.expected and slot.expected.stands):
                raise ReplayError("a replay ended before it reached a tensor that backward needs")

    def alive(self) -> Iterator[tuple[int, Slot]]:
        """Slots that some node still has, with their numbers."""
        for number, reference in enumerate(self.slots):
            slot = None if reference is None else reference()
            if slot is not None:
                yield number, slot

    def was_given_nested(self) -> bool:
        """Whether a nested tensor came from outside, whose lengths those inside have too."""
        return any(type(held) is Detached and held.tensor().is_nested for held in self.boundary)

    def call_at(self, number: int) -> MemberCall:
        """The call that fills a slot."""
        return next(call for call in self.calls if call.end is None or call.end > number)

    def _last_empty(self, backward: int) -> int:
        for number in range(len(self.slots) - 1, -1, -1):
            reference = self.slots[number]
            slot = None if reference is None else reference()
            if slot is None or slot.value is not None or slot.given == backward:
                continue
            if slot.expected is None or not slot.expected.stands:
                return number
        return -1


@_torch_private.never_compiled
def unpack(slot: Slot | OwnedSlot | Detached | MovedTensor) -> Tensor:
    """Return the tensor that `slot` stands for: autograd calls this as a node reads what it saved."""
    return slot.tensor()
