"""A segment's first frame: its replay is a rehearsal, and backward goes on where that goes wrong.

It leaves no trace: what the replay has changed of Python objects is put back, and the call is kept. Where forward has
changed what cannot be put back, such as an iterator or a weight, no replay runs.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..._calls.spill import NoRoom, Spill, SpilledTensor
from .around import Generator
from .hidden import Hidden
from .replay import Replay
from .trial import CANNOT, OTHER_VALUES, Trial

if TYPE_CHECKING:
    from .frame import Call, Frame
    from .nets import Nets

CHANGES = "changes {}, which a replay would do again"
FAILS = "fails in its replay ({}: {})"


class Rehearsal(Trial):
    """A frame of which what it drops is spilled too."""

    __slots__ = ("_hidden", "_spill", "_why")

    def __init__(self, nets: Nets, segment: int) -> None:
        super().__init__(nets, segment, compares=True)
        self._hidden: Hidden | None = None  # of the call that is running
        self._spill: Spill | None = None
        self._why: dict[str, str] = {}  # calls that are to be kept

    def begins(self, call: Call) -> list[Generator]:
        self._hidden = Hidden([call], weights=True)
        self.others = list(dict.fromkeys([*super().begins(call), *self._hidden.generators]))
        return self.others

    def ends(self, call: Call) -> None:
        super().ends(call)
        hidden, self._hidden = self._hidden, None
        if hidden is not None and (lost := hidden.lost()):
            self._why[call.key] = CHANGES.format(lost[0])

    def spilled(self, tensor: Tensor) -> SpilledTensor | None:
        try:
            self._spill = self._spill or self.nets.spill(tensor.device)
            held = self._spill.take(tensor)
        except NoRoom as error:
            self.nets.no_room(error)
            return None
        return held if isinstance(held, SpilledTensor) else None

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        hidden, replay = Hidden(frame.calls), Replay(frame, last, backward)
        try:
            if not self._why or _needs(frame):
                contextvars.copy_context().run(replay.run)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if _needs(frame):
                raise self.refused(replay.call.key, CANNOT.format(error)) from error
            self._why.setdefault(replay.call.key, FAILS.format(type(error).__name__, error))
        finally:
            changed = hidden.changed()
            hidden.put_back()
        if changed:
            self._why.setdefault(replay.call.key, CHANGES.format(changed[0]))
        if wrong := self.wrong(frame, last, backward):
            self._why.setdefault(frame.call_at(wrong[0][0]).key, OTHER_VALUES)
            if any(slot.proof is None or slot.proof.spilled is None for _, slot in wrong):
                raise self.refused(frame.call_at(wrong[0][0]).key, OTHER_VALUES)
        if self._why:
            hidden.put_hooks_back()
        for key, reason in self._why.items():
            self.nets.fault(self.segment, key, reason)
        for number, slot in frame.alive():
            if slot.proof is not None and slot.proof.spilled is not None:
                slot.proof.stands, slot.value = frame.call_at(number).key, None
        self.nets.rehearsed(self.segment)


def _needs(frame: Frame) -> bool:
    """Whether a frame has slots that only a replay can fill."""
    return any(slot.value is None and not (slot.proof and slot.proof.spilled) for _, slot in frame.alive())
