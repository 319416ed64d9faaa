"""A rehearsal: the first replay of a segment, with forward's own saved tensors as a fallback if it goes wrong.

                rehearsal                                       check
saved           checksum, and the bytes if there is room        checksum
equal           go on                                           go on
differs         backward reads those bytes, the call is kept    ReplayError, the call is kept
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..._calls.found.around import Generator
from ..._calls.layout import told_by_bytes
from ..._stash.base import NoRoom
from ..._stash.held import HeldStashes
from ..._stash.spill import Spill, SpilledTensor
from ..._torch import private
from ..frames.frame import Descends, Frame, MemberCall
from ..frames.replay import Replay
from .check import CANNOT, CHANGES, OTHER_VALUES, Check
from .expected import CopiedNumbers, expected_in
from .findings import Findings
from .hidden import Hidden, Snapshot, Sums

_log = logging.getLogger("autockpt")

FAILS = "fails in its replay ({}: {}{})"

_FEW = 16
"""CPU tensors of so few elements are copied; larger ones are spilled."""


class Spills:
    """Opens the spills in which rehearsals put the saved tensors that frames drop.

    Args:
        stashes: opens stashes.
    """

    def __init__(self, stashes: HeldStashes) -> None:
        self._stashes = stashes
        self._open: dict[str, weakref.ref[Spill]] = {}  # by type of device
        self._told_no_room = False

    def of(self, device: torch.device) -> Spill:
        """Return the spill for a device's tensors. It is shared, and closes with the last frame that uses it.

        Raises:
            NoRoom: there is no room.
        """
        known = self._open.get(device.type)
        spill = known() if known is not None else None
        if spill is None:
            spill = Spill(self._stashes.open(device), device, ())
            self._open[device.type] = weakref.ref(spill)
        return spill

    def no_room(self, error: NoRoom) -> None:
        """Warn, once, that a dropped tensor has no room: if that replay goes wrong, it is an error."""
        if not self._told_no_room:
            self._told_no_room = True
            _log.warning("a rehearsal has only checksums to go by: %s", error)


class Rehearsal(Check):
    """Replays a segment's first frame. What that drops is spilled too, and backward reads it if the replay goes wrong.

    A replay that changes Python objects or small tensors leaves no trace: they are put back, and the call is kept. If
    forward changed what cannot be put back (an iterator, a weight, an argument through a pointer), no replay runs.

    Args:
        findings: where results are noted.
        segment: number of the frame's segment.
        spills: where the dropped tensors wait.
    """

    __slots__ = ("_changed", "_held", "_hidden", "_spills", "_sums", "_why")

    def __init__(self, findings: Findings, segment: int, spills: Spills) -> None:
        super().__init__(findings, segment, compares=True)
        self._restores = True
        self._hidden: Hidden | None = None  # snapshot for the running call
        self._sums: Sums | None = None
        self._spills = spills
        self._held: dict[str, Spill] = {}  # by type of device
        self._why: dict[str, str] = {}  # calls to keep, with reasons
        self._changed: dict[str, list[str]] = {}  # what the forwards of calls changed

    @private.never_compiled
    def begins(self, call: MemberCall, given: Sequence[Tensor]) -> list[Generator]:
        with private.no_torch_functions():
            self._hidden = hidden = Hidden([call], given)
            self._sums = Sums([*hidden.weights(), *hidden.large()], given)
        self._others = list(dict.fromkeys([*super().begins(call, given), *hidden.generators]))
        return self._others

    @private.never_compiled
    def ends(self, call: MemberCall, results: Sequence[Tensor]) -> None:
        super().ends(call, results)
        hidden, sums, self._hidden, self._sums = self._hidden, self._sums, None, None
        if hidden is not None and sums is not None:
            with private.no_torch_functions():
                lost, self._changed[call.key] = [*sums.changed(), *hidden.lost()], hidden.changed()
            if lost:
                self._why[call.key] = CHANGES.format(lost[0])

    def spilled(self, tensor: Tensor) -> SpilledTensor | CopiedNumbers | None:
        if tensor.is_cpu and tensor.numel() <= _FEW and told_by_bytes(tensor):
            return CopiedNumbers(tensor)
        try:
            kind = tensor.device.type
            spill = self._held[kind] = self._held.get(kind) or self._spills.of(tensor.device)
            held = spill.take(tensor)
        except NoRoom as error:
            self._spills.no_room(error)
            return None
        return held if isinstance(held, SpilledTensor) else None

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        before, replay = Snapshot(frame.calls), self.make(frame, last, backward)

        def again() -> None:
            self.need_all()
            before.put_back()

        try:
            self._try(frame, replay, again)
        finally:
            changed = before.put_back()
        if changed:
            self._blame(replay.call.key, changed)
        try:
            wrong = self.wrong(frame, last, backward)
        finally:  # on a device `wrong` may have replayed once more
            before.put_back()
            self.findings.hooks_wrote(self.segment, before.hooks_keep)
        if wrong:
            if not self._why:  # else a call that is named gave this one other arguments
                self._why[frame.call_at(wrong[0][0]).key] = OTHER_VALUES
            if any((each := expected_in(slot)) is None or each.spilled is None for _, slot in wrong):
                raise self.refused(frame.call_at(wrong[0][0]).key, OTHER_VALUES)
        self._settle(frame)

    def descend(self, frame: Frame, descent: Descends) -> bool:
        if self._why:  # its replay settles what becomes of it
            return False
        before = Snapshot(frame.calls)
        try:
            descent.run()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self._why[descent.call.key] = FAILS.format(type(error).__name__, error, "")
        finally:
            changed = before.put_back()
            self.findings.hooks_wrote(self.segment, before.hooks_keep)
        if changed:
            self._blame(descent.call.key, changed)
        return not self._why

    def _blame(self, last: str, changed: list[str]) -> None:
        """Keep the call whose forward changed what a replay has changed; where none did, the last that ran."""
        blamed = [key for key, names in self._changed.items() if not {*changed}.isdisjoint(names)]
        self._why.setdefault(blamed[0] if blamed else last, CHANGES.format(changed[0]))

    def _try(self, frame: Frame, replay: Replay, again: Callable[[], None]) -> None:
        """Run a replay, unless a call cannot be replayed and none is needed. An error is a reason to keep the call."""
        try:
            if not self._why or _needs(frame):
                replay.run(again)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if _needs(frame):
                raise self.refused(replay.call.key, CANNOT.format(error)) from error
            self._why.setdefault(replay.call.key, FAILS.format(type(error).__name__, error, replay.hint()))

    def _settle(self, frame: Frame) -> None:
        """Let backward read what forward saved, as far as it was spilled; note the calls that are kept."""
        for key, reason in self._why.items():
            self.findings.fault(self.segment, key, reason)
        for number, slot in frame.alive():
            expected = expected_in(slot)
            if expected is not None and expected.spilled is not None:
                expected.stands, slot.value = frame.call_at(number).key, None
        self.findings.rehearsed.add(self.segment)


def _needs(frame: Frame) -> bool:
    """Whether a frame has slots that only a replay can fill."""
    return any(
        slot.value is None and not ((expected := expected_in(slot)) and expected.spilled) for _, slot in frame.alive()
    )
