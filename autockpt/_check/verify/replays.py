"""Compares what replays make with what their forwards dropped: which call differs, and whether the plan is to blame."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from contextvars import copy_context
from typing import NamedTuple

import torch

from ..._record.aside.sandbox import Sandbox
from ..._run.compare.unwritten import Remade, attentions, is_unwritten
from ..._run.frames.frame import Frame
from ..._run.frames.plain import Plain
from ..._run.frames.replay import Replay
from ..._run.frames.slots import Slot
from ..._torch import private
from .outcome import Observed, compare
from .report import Difference

REPLAYS = 4
"""A frame repeats itself if this many replays from one state agree: noise need not show in the first two."""


class Fault(NamedTuple):
    """A replay that did not make what its forward dropped.

    If it `repeats`, further replays from one visible state agree with one another. Then the difference is no noise:
    forward had some state that replays do not have.
    """

    difference: Difference
    repeats: bool


class _Dropped(NamedTuple):
    """What a forward dropped.

    Attributes:
        observed: a copy on the host.
        node: number of the node of autograd that saved it.
        requires_grad: whether a gradient flows through it.
    """

    observed: Observed
    node: int
    requires_grad: bool


class Comparing:
    """Gives the frames of a plan replayers that compare what they make with copies, on the host, of what was dropped.

    Args:
        state: returns what remembers all that a replay may change.

    Attributes:
        refused: segments that are not replayed: here none.
        rehearsed: segments of which a replay has run: none that would change anything.
        step: number of the step that runs, for the differences.
        faults: replays that differ or raise, in the order of backward.
    """

    def __init__(self, state: Callable[[], Sandbox]) -> None:
        self.refused: Collection[int] = ()
        self.rehearsed: Collection[int] = ()
        self.step = 0
        self.faults: list[Fault] = []
        self.state = state

    def begin(self) -> None:
        """Do nothing as a forward begins."""

    def replayer(self, segment: int) -> _Compared:
        """Return what replays the next frame of a segment."""
        return _Compared(self)


class _Compared(Plain):
    compares = True

    def __init__(self, comparing: Comparing) -> None:
        self._comparing = comparing
        self._dropped: weakref.WeakKeyDictionary[Slot, _Dropped] = weakref.WeakKeyDictionary()

    @private.never_compiled
    def saves(self, slot: Slot, tensor: torch.Tensor) -> None:
        if tensor.dtype is not torch.uint8 or tensor.dim() != 1:  # else a workspace, which its kernel need not fill
            observed = Observed("replay", slot.frame.calls[-1].key, tensor).kept()
            self._dropped[slot] = _Dropped(observed, private.saving_node(), tensor.requires_grad)

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        slots = [slot for _, slot in frame.alive() if slot.value is None and slot in self._dropped]
        dropped = {slot: self._dropped.pop(slot) for slot in slots}
        make = frame.makes or Replay
        again = _Again(self._comparing.step, dropped, lambda: make(frame, last, backward), frame.calls[-1].key)
        error = again.run()
        if error is None:  # what frames inside have taken over is compared in their replays
            self._dropped.update((slot, dropped.pop(slot)) for slot in slots if slot.frame is not frame)
        difference = again.difference(error)
        if difference is not None:
            self._comparing.faults.append(Fault(difference, again.repeats(self._comparing.state)))
        if error is not None:
            raise error


class _Again:
    """A frame that is replayed several times."""

    def __init__(self, step: int, dropped: dict[Slot, _Dropped], make: Callable[[], Replay], last_key: str) -> None:
        self._step, self._dropped, self._make, self._last_key = step, dropped, make, last_key

    def run(self) -> Exception | None:
        """Replay the frame; return what it raised."""
        try:
            self._make().run()
        except Exception as error:  # reported as a fault, and raised again after the first replay
            return error
        return None

    def difference(self, error: Exception | None) -> Difference | None:
        """Return the first difference of what the replay made, under the name of its call; None if there is none."""
        nodes = self._attentions()
        made = {
            slot: Remade(slot.value, each.node, each.requires_grad)
            for slot, each in self._dropped.items()
            if slot.value is not None
        }
        for slot, each in made.items():
            one = self._dropped[slot].observed
            found = compare(self._step, [one], [one._replace(value=each.value)])
            if found and not is_unwritten(each, made.values(), nodes):
                return found[0]
        if error is None:
            return None
        missing = (each.observed.name for slot, each in self._dropped.items() if slot.value is None)
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Difference(kind="replay", name=next(missing, self._last_key), step=self._step, what=what)

    def _attentions(self) -> set[int]:
        """Return the numbers of the attention nodes in the frame, found from the node for which backward replays it."""
        since = min((each.node for each in self._dropped.values()), default=0)
        return attentions([private.running_node()], since)

    def repeats(self, state: Callable[[], Sandbox]) -> bool:
        """Whether replays from one visible state agree; or change something visible that cannot be put back."""
        first = [(slot, slot.value, slot._version) for slot in self._dropped]
        before = state()
        outcomes: list[tuple[str, list[Observed]]] = []
        agree = True
        while agree and len(outcomes) < REPLAYS:
            for slot in self._dropped:
                slot.value = None
            error = copy_context().run(self.run)
            made = [each.observed._replace(value=slot.value).kept() for slot, each in self._dropped.items()]
            if before.notes():
                break
            before.restore()
            outcomes.append((str(error), made))
            same = not any(compare(self._step, [one], [two]) for one, two in zip(outcomes[0][1], made, strict=True))
            agree = outcomes[0][0] == str(error) and same
        before.restore()
        for slot, value, version in first:  # backward goes on with the first replay
            slot.value, slot._version = value, version
        return agree
