"""The replayer that compares nothing."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..._calls.found.around import Generator
from ..._calls.found.held import Changed
from ..._data.errors import ReplayError
from .frame import Descends, Frame, MemberCall
from .replay import Replay
from .slots import Slot


class Plain:
    """Replays frames, and compares nothing."""

    compares = False

    def begins(self, call: MemberCall, given: Sequence[Tensor]) -> list[Generator]:
        """Need no further generator."""
        return []

    def ends(self, call: MemberCall, results: Sequence[Tensor]) -> None:
        """Need nothing of a call."""

    def saves(self, slot: Slot, tensor: Tensor) -> None:
        """Need nothing of what is saved."""

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Replay a frame; arguments and errors as for `Replayer.replay`."""
        (frame.makes or Replay)(frame, last, backward).run()

    def descend(self, frame: Frame, descent: Descends) -> bool:
        """Run the parts of a frame but the last; returns as `Replayer.descend`."""
        try:
            descent.run()
        except (Changed, ReplayError):  # a replay in one go raises it again, unless only replays in parts do
            return False
        return True
