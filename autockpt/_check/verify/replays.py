"""What replays make, held against what their forwards dropped: which call a difference comes from, and whose it is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import NamedTuple

import msgspec
import torch

from ..._record.sandbox import Sandbox
from ..._run.frames.frame import Call, Frame
from ..._run.frames.saved import Slot
from ..._run.frames.trial import alive
from .compare import compare
from .outcome import Observed
from .report import Difference

REPLAYS = 4
"""Replays of a frame from one state before it counts as repeating itself: noise need not show in the first two."""


class Fault(NamedTuple):
    """A replay that did not make what its forward dropped.

    Where it `repeats`, further replays from one visible state agree with one another: it is no noise, but forward had
    a state that replays do not have.
    """

    difference: Difference
    repeats: bool


@contextmanager
def comparing_replays(step: int, state: Callable[[], Sandbox], faults: list[Fault]) -> Iterator[None]:
    """Compare what every replay in the block makes with what forward dropped, of which copies wait on the host.

    Args:
        step: number of the step, for the differences.
        state: remembers all that a replay may change.
        faults: takes those that are found, in the order of backward; a replay that raises is one.
    """
    dropped: weakref.WeakKeyDictionary[Slot, Observed] = weakref.WeakKeyDictionary()
    make, plain = Slot.__init__, Frame.replay

    def drop(slot: Slot, frame: Frame, tensor: torch.Tensor) -> None:
        make(slot, frame, tensor)
        if tensor.dtype is not torch.uint8 or tensor.dim() != 1:  # a kernel's workspace, which it need not fill
            dropped[slot] = Observed("replay", str(len(frame.slots)), tensor).kept()

    def replay(frame: Frame) -> None:
        slots = [slot for _, slot in alive(frame) if slot.value is None and slot in dropped]
        again = _Again(frame, slots, plain)
        expected = [dropped.pop(slot) for slot in slots]
        error = again.run()
        difference = _first(step, again.calls, expected, again.made(expected), error)
        if difference is not None:
            faults.append(Fault(difference, again.repeats(step, expected, state)))
        if error is not None:
            raise error

    Slot.__init__, Frame.replay = drop, replay  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Slot.__init__, Frame.replay = make, plain  # type: ignore[method-assign]


class _Again:
    """A frame that is replayed several times: a replay lets go of what it was made from, so that is held here."""

    def __init__(self, frame: Frame, slots: list[Slot], plain: Callable[[Frame], None]) -> None:
        self.calls = frame.calls
        self._boundary = frame.boundary
        self._frame, self._slots, self._plain = frame, slots, plain

    def run(self) -> Exception | None:
        """Replay the frame; return what it raised."""
        self._frame.calls, self._frame.boundary = self.calls, self._boundary
        try:
            self._plain(self._frame)
        except Exception as error:  # told as a fault, and raised by the first replay
            return error
        return None

    def made(self, expected: list[Observed]) -> list[Observed]:
        """Return what the replay made, under the names of what was dropped; None where it made nothing."""
        return [each._replace(value=slot.value) for each, slot in zip(expected, self._slots, strict=True)]

    def repeats(self, step: int, expected: list[Observed], state: Callable[[], Sandbox]) -> bool:
        """Whether replays from one visible state agree, or change something visible that nobody can put back."""
        first = [(slot, slot.value, slot._version) for slot in self._slots]
        before = state()
        outcomes: list[tuple[str, list[Observed]]] = []
        agree = True
        while agree and len(outcomes) < REPLAYS:
            for slot in self._slots:
                slot.value = None
            error = copy_context().run(self.run)
            made = [each.kept() for each in self.made(expected)]
            if before.notes():
                break
            before.restore()
            outcomes.append((str(error), made))
            agree = outcomes[0][0] == str(error) and not compare(step, outcomes[0][1], made)
        before.restore()
        for slot, value, version in first:  # what backward goes on with
            slot.value, slot._version = value, version
        return agree


def _first(
    step: int, calls: list[Call], expected: list[Observed], made: list[Observed], error: Exception | None
) -> Difference | None:
    """Return the first difference, under the name of the call that it is in; None if there is none."""
    filled = [each for each in made if each.value is not None]
    names = {each.name for each in filled}
    found = compare(step, [each for each in expected if each.name in names], filled)
    if found:
        return msgspec.structs.replace(found[0], name=_call_of(calls, int(found[0].name)))
    if error is None:
        return None
    missing = [int(each.name) for each in expected if each.name not in names]
    name = _call_of(calls, missing[0] if missing else len(expected))
    return Difference(
        kind="replay", name=name, step=step, what=f"{type(error).__name__}: {' '.join(str(error).split())}"
    )


def _call_of(calls: list[Call], slot: int) -> str:
    """The call that saved what stands at number `slot` of a frame; its last one where that never returned."""
    return next((call.key for call in calls if call.end is None or call.end > slot), calls[-1].key)
