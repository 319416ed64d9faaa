"""A replay that leaves inner calls to replays of their own: these calls join new frames, which take over slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..._calls.found.around import Generator, Undo
from ..._data.errors import ReplayError
from ..._torch import private
from ..frames.frame import Frame, MemberCall
from ..frames.pack import Pack
from ..frames.plain import Plain
from ..frames.recording import Recording
from ..frames.replay import Replay
from ..frames.thread import Scope, thread
from .descent import TAKES_GRADIENT


class Inside(Replay):
    """Replays a frame, except for the inner segments of its calls: each of these gets a frame of its own.

    Arguments as for `Replay`.
    """

    def _begin(self) -> None:
        super()._begin()
        self._passed: list[int] = []  # numbers of the slots that are left to other frames
        self._frames: list[Frame] = []

    def _once(self) -> None:
        super()._once()
        # Only once the replay has succeeded. A frame whose replay fails is replayed as a whole, which fills all slots.
        for frame in self._frames:
            for _, slot in frame.alive():
                slot.frame = frame
        for number in self._passed:
            self._slots[number] = None

    def _run(self, call: MemberCall, undo: Undo) -> Any:
        if call.within is None:
            return super()._run(call, undo)
        thread.scope = scope = Scope.in_replay(*call.within, self._record)
        try:
            return super()._run(call, undo)
        finally:
            thread.scope = None
            scope.end_frame()

    def _record(self, segment: int, *_: object) -> Recording:
        """Return a recording of a new frame, for an inner segment."""
        recording = _InnerRecording(segment, _Sees(self, self.call.generators), self._frame)
        self._frames.append(recording.frame)
        return recording

    def pass_on(self, frame: Frame) -> None:
        """Leave the next slot to `frame`, and end the replay if it was the last."""
        if self._stopped:  # the module caught `_Stop` and went on
            self._stop(self._problem)
        number, self._next = self._next, self._next + 1
        if self.call.end is not None and number >= self.call.end:
            self._stop("saved more tensors than its forward did")
        frame.slots.append(self._slots[number])
        self._passed.append(number)
        if number == self._last:
            self._stop(None)


class _Sees(Plain):
    """Observes the members of an inner segment while a replay runs them. All else is known from forward.

    Args:
        inside: the replay.
        generators: those of the member that the inner segment is in.
    """

    def __init__(self, inside: Inside, generators: list[Generator]) -> None:
        self.inside, self._generators = inside, generators

    def begins(self, call: MemberCall, given: Sequence[Tensor]) -> list[Generator]:
        return self._generators


class _NotHeld:
    """Stands for a tensor that a replay saves but does not hold. The replay of an inner frame makes it again."""

    @private.never_compiled
    def tensor(self) -> Tensor:
        raise ReplayError(TAKES_GRADIENT)


class _PassOn(Pack):
    """The pack hook of an inner member in a replay: the member's frame takes over the slots that the replay reaches."""

    def has_frame(self, wanted: bool) -> bool:
        frame = self._frame
        assert frame is not None and isinstance(frame.replayer, _Sees)
        return super().has_frame(frame.replayer.inside.has_frame(wanted))

    @private.never_compiled
    def hook(self, _: Tensor) -> Any:
        frame = self._frame
        assert frame is not None and isinstance(frame.replayer, _Sees)
        frame.replayer.inside.pass_on(frame)
        return _NotHeld()


class _InnerRecording(Recording):
    """Records the frame of an inner segment, as long as members join it.

    Args:
        segment: number of the segment among the inner segments of the replayed one.
        sees: observes the members meanwhile.
        outer: the frame that is being replayed. Its replayer replays this frame too.
    """

    packs = _PassOn

    def __init__(self, segment: int, sees: _Sees, outer: Frame) -> None:
        super().__init__(segment, sees)
        self._outer = outer

    def close(self) -> None:
        super().close()
        self.frame.replayer = self._outer.replayer
