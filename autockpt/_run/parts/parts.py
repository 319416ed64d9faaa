"""Replays frames in parts, or without their inner segments: each of these has its own frame, over the same slots."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ..._calls.found.held import BOUNDARY, Changed, Ref
from ..._data.errors import ReplayError
from ..frames.frame import Frame, Replayer
from .descent import Descent
from .inside import Inside


class InParts:
    """A replayer around that of a frame that goes in parts or has inner segments, and around those of its parts.

    Args:
        replayer: replays frames without parts, and runs the descents of frames with parts.
    """

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self.compares = replayer.compares
        self.begins, self.ends, self.saves = replayer.begins, replayer.ends, replayer.saves
        self.descend = replayer.descend

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Descend and split a frame into its parts, or replay it; arguments and errors as for `Replayer.replay`."""
        may = frame.closed and backward < 0
        begins = _begins(frame, last) if may else []
        if begins:
            descent = Descent(frame, last, begins)
            if self.descend(frame, descent):
                _hand_on(frame, descent)
                return
        elif may and any(call.within is not None for call in frame.calls):
            frame.makes = Inside
            try:
                self._replayer.replay(frame, last, backward)
                return
            except (Changed, ReplayError):
                pass  # a replay of all at once raises it again, unless only this way fails
            finally:
                frame.makes = None
        self._replayer.replay(frame, last, backward)


def _begins(frame: Frame, last: int) -> list[int]:
    """Return the numbers of the calls that begin the outermost parts up to a slot, without the first part's."""
    calls = frame.calls[1 : frame.calls.index(frame.call_at(last)) + 1]
    level = min((call.cut for call in calls if call.cut), default=0)
    return [number for number, call in enumerate(calls, 1) if call.cut == level] if level else []


def _hand_on(frame: Frame, descent: Descent) -> None:
    """Hand the slots of a frame, and what its calls need, on to a frame for each of its parts."""
    for first, stop in pairwise([0, *descent.begins, descent.stop]):
        _part_of(frame, descent, first, stop)
    frame.calls, frame.boundary, frame.slots = [], [], []


def _part_of(frame: Frame, descent: Descent, first: int, stop: int) -> None:
    """Hand some calls on to a frame of their own; its slots hold it."""
    part, calls = Frame(frame.replayer), frame.calls
    begin, end = calls[first - 1].end if first else 0, calls[stop - 1].end
    part.closed, part.slots = True, frame.slots[begin:end]
    boundary: dict[Ref, int] = {}

    def refer(ref: Ref) -> Ref:
        if ref.call >= first:
            return Ref(ref.call - first, ref.leaf)
        if ref not in boundary:
            boundary[ref] = len(boundary)
            part.boundary.append(frame.boundary[ref.leaf] if ref.call == BOUNDARY else descent.given[ref])
        return Ref(BOUNDARY, boundary[ref])

    for call in calls[first:stop]:
        call_end = None if call.end is None else call.end - (begin or 0)
        cut = call.cut if part.calls else 0
        part.calls.append(replace(call, refs=[refer(ref) for ref in call.refs], end=call_end, cut=cut))
    for _, slot in part.alive():
        slot.frame = part
