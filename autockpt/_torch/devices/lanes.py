"""Streams on which copies to the host and back run beside the computing, one each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Direction = Literal["out", "back"]


@dataclass(frozen=True, slots=True)
class AskedCopy:
    """A copy that a lane was asked for.

    Attributes:
        event: passed once the copy is over.
        asked_on: the stream that was current when it was asked for, whose memory it reads or writes.
    """

    event: torch.cuda.Event
    asked_on: torch.Stream


class Lanes:
    """Two streams of a CUDA device.

    What a copy reads and writes must be held until a stream that would use the memory anew has waited for it: the
    allocator knows of no lane. So levels depend on what is asked, and never on how fast copies are.

    Args:
        at: the device.
    """

    def __init__(self, at: torch.device) -> None:
        self._at = at
        self._streams: dict[Direction, torch.cuda.Stream] = {}

    def run(self, way: Direction, copy: Callable[[], object], after: AskedCopy | None = None) -> AskedCopy:
        """Have a lane copy once all is done that the current stream was asked for until now; and another copy, maybe.

        Args:
            way: which lane.
            copy: asks for the copies, in the lane's stream.
            after: a copy that must be over before.
        """
        current = torch.cuda.current_stream(self._at)
        if way not in self._streams:
            self._streams[way] = torch.cuda.Stream(self._at)
        lane = self._streams[way]
        lane.wait_stream(current)
        if after is not None:
            lane.wait_event(after.event)
        with torch.cuda.stream(lane):
            copy()
        event = torch.cuda.Event()
        event.record(lane)
        return AskedCopy(event, current)

    def wait(self, mark: AskedCopy, tensor: torch.Tensor) -> None:
        """Have the stream that asked for a copy, and the current one, wait until it is over.

        Args:
            mark: the copy.
            tensor: what it reads or writes on the device. It is let go of afterwards, or used by the current stream.
        """
        current = torch.cuda.current_stream(self._at)
        current.wait_event(mark.event)
        if current != mark.asked_on:
            mark.asked_on.wait_event(mark.event)
            tensor.record_stream(current)

    def finish(self) -> None:
        """Wait until the current stream has done all that it was asked for, copies that it waits for included."""
        torch.cuda.current_stream(self._at).synchronize()
