"""The frame: one execution of a segment, and how it is replayed.

    autograd's nodes ──▶ slots ──▶ frame ──▶ calls, boundary          (──▶ strong, ··▶ weak)
                           ▲·········┘

Slots hold their frame. The frame has only weak references to its slots (rules 1 and 2 in `__init__`).
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..._calls.found.around import Around, Generator, States
from ..._calls.found.held import Detached, Ref
from ..._calls.found.state import ModuleState
from ..._data.errors import ReplayError
from ..._torch import private
from .slots import Fills, Look, OwnedSlot, Slot
from .unit import Units
from .waiting.moved import MovedTensor


class Within(NamedTuple):
    """What a replay of a member needs to leave calls inside the member to replays of their own; see `_run/parts`.

    Attributes:
        handle: the model's `Handle`.
        table: the `Table` that says what becomes of the calls inside.
        counts: number of calls within the root's call before the member began, by qualified name.
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
        keywords: names of the last arguments, which were passed by keyword.
        refs: where the tensors among the arguments come from.
        module: what forward found in its modules.
        around: autocast, flags, modes, context variables and stream under which it ran.
        random: generator states to set before it.
        generators: all generators that it could draw from.
        unmoved: those of them that its replay need not restore.
        end: number of slots in the frame when it returned; None if it has not returned.
        units: the units inside it, which a replay does not run; None if a replay runs everything.
        cut: level of the part of the frame that begins with this call; 0 if no part begins here.
        within: what its replay needs for calls inside it that have replays of their own; None if there are none.
        fsdp_unit: the FSDP2 unit that it calls, if its segment has other calls too; else None.
        functions: for each function inside it that recomputes by itself, whether it had a frame, as in a replay.
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
    unmoved: Collection[Generator] = ()
    end: int | None = None
    units: Units | None = None
    cut: int = 0
    within: Within | None = None
    fsdp_unit: Any = None
    functions: list[bool] = field(default_factory=list)


class Descends(Protocol):
    """Runs calls again without filling slots.

    Attributes:
        call: the call that is running, or that ran last.
    """

    call: MemberCall

    def run(self) -> None:
        """Run the calls; errors as for `Replayer.replay`."""


class Replayer(Protocol):
    """Replays one frame. It also observes the frame's forward, as far as the replay needs that.

    Attributes:
        compares: whether `saves` must be called for every tensor that a replay must make again, and `ends`.
    """

    @property
    def compares(self) -> bool: ...

    def begins(self, call: MemberCall, given: Sequence[Tensor]) -> list[Generator]:
        """Observe a call before its forward runs; `given` are the tensors among its arguments.

        Returns:
            Generators to watch besides the devices' own.
        """

    def ends(self, call: MemberCall, results: Sequence[Tensor]) -> None:
        """Observe a call after its forward, if this `compares`."""

    def saves(self, slot: Slot, tensor: Tensor) -> None:
        """Observe a saved tensor that is dropped; `slot` stands for it."""

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Run the calls again and fill the slots that are alive and empty.

        `frame.makes` runs them, or `Replay` if that is None.

        Args:
            frame: the frame.
            last: number of the last of those slots.
            backward: number of the backward; see `Frame`.

        Raises:
            ReplayError: the calls did not save the same tensors as before.
            RuntimeError: a tensor that they read has been changed in place.
        """

    def descend(self, frame: Frame, descent: Descends) -> bool:
        """Run all parts of a frame except the last, for the results that later parts take; see `_run/parts`.

        Returns:
            Whether that succeeded. If not, the caller must replay the whole frame in one go.
        """


class Frame:
    """One execution of a segment.

    A backward that keeps its graph has a number of 0 or more. Any other backward has -1.

    Attributes:
        closed: whether no further call may join. A gradient taken inside forward replays a frame that is not closed.
        calls: the calls so far, in order.
        boundary: the tensors from outside.
        slots: what the calls packed, in order: weak references to slots, and None for what needs no replay.
        looks: the looks of its slots. Slots share equal ones: thousands more objects would trigger Python's collector.
        replayer: replays it.
        moves: whether tensors of the boundary may wait off the device.
        makes: the class of its replay; None for `Replay`.
        whole: whether its replays skip no unit.
    """

    __slots__ = (
        "__weakref__",
        "_lock",
        "boundary",
        "calls",
        "closed",
        "looks",
        "makes",
        "moves",
        "replayer",
        "slots",
        "whole",
    )

    def __init__(self, replayer: Replayer) -> None:
        self.replayer = replayer
        self.closed = self.moves = self.whole = False
        self.makes: Callable[..., Any] | None = None
        self.calls: list[MemberCall] = []
        self.boundary: list[Detached] = []
        self.slots: list[weakref.ref[Slot] | None] = []
        self.looks: dict[Look, Look] = {}
        self._lock = threading.RLock()  # backward runs one thread for each device

    def replay(self) -> None:
        """Run the calls again and fill every slot that is still alive and empty; errors as for `Replayer.replay`."""
        with self._lock:
            backward = private.keeping_backward()
            last = self._last_empty(backward)
            if last >= 0:
                self.replayer.replay(self, last, backward)
                if self.moves:
                    for held in self.boundary:
                        held.let_go()
                # If all slots that are alive are full, they stay full: nothing will ask for another replay.
                if self.closed and backward < 0 and self._last_empty(backward) < 0:
                    self.calls, self.boundary = [], []

    def fill(self, slot: Slot) -> None:
        """Replay the frame, unless another thread has done so since `slot` was found empty.

        If the frame has handed its slots to parts, the part that has `slot` is replayed. That part may have parts too.

        Raises:
            ReplayError: the slot is empty after the replay.
        """
        self.try_to_fill(slot)
        frame: Fills = self
        while frame is not slot.frame:
            frame = slot.frame
            frame.try_to_fill(slot)

    def try_to_fill(self, slot: Slot) -> None:
        """As `fill`, but leave the slot empty if another frame has it by then; errors as for `fill`."""
        with self._lock:
            if slot.frame is self and slot.value is None:
                if slot.given is not None:  # a node may read its saved tensor twice in one backward
                    for _, other in self.alive():
                        other.given = None
                self.replay()
            if self._misses(slot) and not self.whole:
                self.whole = True  # a kept unit saved what another one made, which the plan skips
                self.replay()
            if self._misses(slot):
                raise ReplayError("a replay ended before it reached a tensor that backward needs")

    def _misses(self, slot: Slot) -> bool:
        """Whether one of its slots is empty, and no value of forward's stands in for it."""
        return slot.frame is self and slot.value is None and not (slot.expected and slot.expected.stands)

    def alive(self) -> Iterator[tuple[int, Slot]]:
        """Yield the slots that an autograd node still holds, with their numbers."""
        for number, reference in enumerate(self.slots):
            slot = None if reference is None else reference()
            if slot is not None:
                yield number, slot

    def was_given_nested(self) -> bool:
        """Whether the boundary holds a nested tensor. Then nested tensors that the calls make have its lengths."""
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


unpack: Callable[[Slot | OwnedSlot | Detached | MovedTensor], Tensor] = operator.methodcaller("tensor")
"""Return the tensor that something stands for. Autograd calls this when a node reads a saved tensor.

It is no Python function: that would cost one more call for each saved tensor. So each method `tensor` is itself marked
as never compiled.
"""
