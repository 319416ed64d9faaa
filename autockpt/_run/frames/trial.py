"""The trial of one frame: does its replay make what its forward saved?

                  rehearsal                                       check
    saved         checksum, and the bytes where there is room     checksum
    equal         go on                                           go on
    differs       backward gets those bytes, the call is kept     ReplayError, the call is kept

A rehearsal leaves no trace: what the replay has changed of Python objects is put back, and the call is kept. Where
forward has changed what cannot be put back, such as an iterator, no replay runs.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ... import _torch_private
from ..._calls.spill import NoRoom, SpilledTensor
from ..._data.errors import ReplayError
from .around import NUMPY, PYTHON, Generator
from .hidden import Hidden
from .replay import Replay
from .saved import Slot, check_unchanged
from .witness import Witness, same, witness_of

if TYPE_CHECKING:
    from .frame import Call, Frame
    from .nets import Nets

OTHER_VALUES = "saved other values in its replay than in its forward: it reads something that changes in between"
CHANGES = "changes {}, which a replay would do again"
FAILS = "fails in its replay ({}: {})"


class Proof:
    """What a forward saved, for the comparison with what its replay makes.

    Attributes:
        witness: its checksum; None where there is none.
        spilled: its bytes, where the replay is a rehearsal.
        stands: whether backward is to have these, since the replay did not make them.
    """

    __slots__ = ("_saved", "_version", "spilled", "stands", "witness")

    def __init__(self, tensor: Tensor, witness: Witness | None, spilled: SpilledTensor | None) -> None:
        self.witness = witness
        self.spilled = spilled
        self.stands = False
        self._saved = weakref.ref(tensor)
        self._version = _torch_private.version(tensor)

    def tensor(self) -> Tensor:
        """Return what was saved."""
        assert self.spilled is not None
        saved = self._saved()
        if saved is not None:
            check_unchanged(saved, self._version, "a tensor")
        return self.spilled.restore()


class Trial:
    """Compares what a frame's replay makes with what its forward saved.

    Args:
        nets: of the plan.
        segment: number of the frame's segment.
        rehearses: whether backward is to go on where they differ.
    """

    __slots__ = ("_hidden", "_nets", "_others", "_rehearses", "_segment", "_why")

    def __init__(self, nets: Nets, segment: int, *, rehearses: bool) -> None:
        self._nets = nets
        self._segment = segment
        self._rehearses = rehearses
        self._hidden: Hidden | None = None  # of the call that is running
        self._others: list[Generator] = []  # that it may draw from, besides the devices' own
        self._why: dict[str, str] = {}  # calls that must not run again

    def begins(self, call: Call) -> list[Generator]:
        """Look at what a call can reach; return the generators in it that are no device's own."""
        self._others = [PYTHON, NUMPY]
        if self._rehearses:
            self._hidden = Hidden([call])
            self._others += self._hidden.generators
        return self._others

    def ends(self, call: Call) -> None:
        """Look at what a call's forward has changed for good, and from what it drew."""
        hidden, self._hidden = self._hidden, None
        if hidden is not None and (lost := hidden.lost()):
            self._why[call.key] = CHANGES.format(lost[0])
        self._nets.drew(self._segment, [generator for generator, _ in call.random if generator in self._others])

    @_torch_private.never_compiled
    def saves(self, slot: Slot, tensor: Tensor) -> None:
        """Keep what shows whether a replay makes `tensor` for `slot`."""
        with _torch_private.no_torch_functions():
            spilled = None
            if self._rehearses:
                try:
                    spilled = self._nets.spilled(tensor)
                except NoRoom as error:
                    self._rehearses = False
                    self._nets.no_room(self._segment, error)
            witness = witness_of(tensor)
            if witness is not None or spilled is not None:
                slot.proof = Proof(tensor, witness, spilled)

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Replay a frame and compare.

        Raises:
            ReplayError: it makes other values than its forward did, and backward has nothing else to go on with.
            Exception: see `Replay.run`.
        """
        if self._rehearses:
            self._rehearse(frame, last, backward)
            return
        Replay(frame, last, backward).run()
        wrong = [(number, slot) for number, slot in _alive(frame) if _compared(slot) is False]
        if wrong and self._repeats(frame, last, backward, wrong):
            key = _call_at(frame, wrong[0][0]).key
            self._nets.fault(self._segment, key, OTHER_VALUES)
            raise ReplayError(
                f"{key} {OTHER_VALUES}. The gradients of this step would be wrong, so skip the optimizer's step. The "
                f"call is kept from the next forward on; from the first on with keep={key.rpartition('#')[0]!r}."
            )

    def _rehearse(self, frame: Frame, last: int, backward: int) -> None:
        """Replay a frame, and let backward have what was spilled where that makes something else."""
        hidden, replay = Hidden(frame.calls), Replay(frame, last, backward)
        try:
            if not self._why or not all(slot.proof and slot.proof.spilled for _, slot in _alive(frame)):
                contextvars.copy_context().run(replay.run)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not all(slot.value is not None or (slot.proof and slot.proof.spilled) for _, slot in _alive(frame)):
                raise
            self._why.setdefault(replay.call.key, FAILS.format(type(error).__name__, error))
        finally:
            changed = hidden.changed()
            hidden.put_back()
        if changed:
            self._why.setdefault(replay.call.key, CHANGES.format(changed[0]))
        wrong = [(number, slot) for number, slot in _alive(frame) if _compared(slot) is False]
        if wrong and self._repeats(frame, last, backward, wrong):
            self._why.setdefault(_call_at(frame, wrong[0][0]).key, OTHER_VALUES)
        for key, reason in self._why.items():
            self._nets.fault(self._segment, key, reason)
        for _, slot in _alive(frame):
            if slot.proof is not None and slot.proof.spilled is not None:
                slot.proof.stands, slot.value = True, None
        self._nets.rehearsed(self._segment)

    def _repeats(self, frame: Frame, last: int, backward: int, wrong: list[tuple[int, Slot]]) -> bool:
        """Whether another replay makes the same as the one before, or else a kernel does not repeat itself."""
        made: list[tuple[Slot, Witness | None]] = []
        for _, slot in wrong:
            if slot.value is not None and not slot.value.is_cpu:
                made.append((slot, witness_of(slot.value)))
                slot.value = None
        if not made:  # kernels of a CPU repeat themselves
            return True
        Replay(frame, last, backward).run()
        repeated = all(
            slot.value is not None
            and before is not None
            and (now := witness_of(slot.value)) is not None
            and same(now, before)
            for slot, before in made
        )
        if not repeated:
            self._nets.unrepeating(self._segment, _call_at(frame, wrong[0][0]).key)
        return repeated


def _alive(frame: Frame) -> Iterator[tuple[int, Slot]]:
    """Slots that some node still has, with their numbers."""
    for number, reference in enumerate(frame.slots):
        slot = None if reference is None else reference()
        if slot is not None:
            yield number, slot


def _compared(slot: Slot) -> bool | None:
    """Whether a replay has made for a slot what forward saved; None where there is nothing to compare."""
    proof = slot.proof
    if proof is None or slot.value is None:
        return None
    if proof.witness is not None:
        with _torch_private.no_torch_functions():
            made = witness_of(slot.value)
        if made is None or not same(made, proof.witness):
            return False
    slot.proof = None
    return True


def _call_at(frame: Frame, number: int) -> Call:
    """The call that fills a slot."""
    return next(call for call in frame.calls if call.end is None or call.end > number)
