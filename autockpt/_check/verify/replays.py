"""What replays make, held against what their forwards dropped: which call a difference comes from, and whose it is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import NamedTuple

import torch

from ... import _torch_private as private
from ..._frames.frame import Frame
from ..._frames.saved import Slot
from ..._frames.unwritten import Made, attentions, is_unwritten
from ..._record.sandbox import Sandbox
from .outcome import Observed, compare
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


@contextmanager
def comparing_replays(step: int, state: Callable[[], Sandbox], faults: list[Fault]) -> Iterator[None]:
    """Compare what every replay in the block makes with what forward dropped, of which copies wait on the host.

    Args:
        step: number of the step, for the differences.
        state: remembers all that a replay may change.
        faults: takes those that are found, in the order of backward; a replay that raises is one.
    """
    dropped: weakref.WeakKeyDictionary[Slot, _Dropped] = weakref.WeakKeyDictionary()
    make, plain = Slot.__init__, Frame.replay

    def drop(slot: Slot, frame: Frame, tensor: torch.Tensor) -> None:
        make(slot, frame, tensor)
        if tensor.dtype is not torch.uint8 or tensor.dim() != 1:  # a kernel's workspace, which it need not fill
            observed = Observed("replay", frame.calls[-1].key, tensor).kept()
            dropped[slot] = _Dropped(observed, private.saving_node(), tensor.requires_grad)

    def replay(frame: Frame) -> None:
        slots = [slot for _, slot in frame.alive() if slot.value is None and slot in dropped]
        again = _Again(step, frame, {slot: dropped.pop(slot) for slot in slots}, plain)
        error = again.run()
        difference = again.difference(error)
        if difference is not None:
            faults.append(Fault(difference, again.repeats(state)))
        if error is not None:
            raise error

    Slot.__init__, Frame.replay = drop, replay  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Slot.__init__, Frame.replay = make, plain  # type: ignore[method-assign]


class _Again:
    """A frame that is replayed several times: a replay lets go of what it was made from, so that is held here."""

    def __init__(self, step: int, frame: Frame, dropped: dict[Slot, _Dropped], plain: Callable[[Frame], None]) -> None:
        self._step, self._frame, self._dropped, self._plain = step, frame, dropped, plain
        self._calls, self._boundary = frame.calls, frame.boundary

    def run(self) -> Exception | None:
        """Replay the frame; return what it raised."""
        self._frame.calls, self._frame.boundary = self._calls, self._boundary
        try:
            self._plain(self._frame)
        except Exception as error:  # told as a fault, and raised by the first replay
            return error
        return None

    def difference(self, error: Exception | None) -> Difference | None:
        """Return the first difference of what the replay made, under the name of its call; None if there is none."""
        nodes = self._attentions()
        made = {
            slot: Made(slot.value, each.node, each.requires_grad)
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
        name = next(missing, self._calls[-1].key)
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Difference(kind="replay", name=name, step=self._step, what=what)

    def _attentions(self) -> set[int]:
        """Return the numbers of attention's nodes in the frame: behind the one for which backward replays it."""
        since = min((each.node for each in self._dropped.values()), default=0)
        return attentions([private.running_node()], since)

    def repeats(self, state: Callable[[], Sandbox]) -> bool:
        """Whether replays from one visible state agree, or change something visible that nobody can put back."""
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
        for slot, value, version in first:  # what backward goes on with
            slot.value, slot._version = value, version
        return agree
