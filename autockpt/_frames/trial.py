"""The trial of one frame: does its replay make what its forward saved?

rehearsal                                       check
saved         checksum, and the bytes where there is room     checksum
equal         go on                                           go on
differs       backward has those bytes, the call is kept      ReplayError, the call is kept
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from .. import _torch_private
from .._calls.layout import told_by_bytes
from .._data.errors import ReplayError
from .._stash.base import NoRoom, Spill, SpilledTensor
from .around import NUMPY, PYTHON, Generator
from .hidden import Copies, Hidden, Sums
from .proof import Copied, Proof, kept
from .replay import Replay
from .saved import Changed, Slot
from .unwritten import Made, attentions, is_unwritten
from .witness import Places, Witness, all_same, witness_of

if TYPE_CHECKING:
    from .frame import Call, Frame
    from .nets import Nets

OTHER_VALUES = "saved other values in its replay than in its forward: it reads something that changes in between"

CANNOT = "cannot be replayed ({})"

CHANGES = "changes {}, which a replay would do again"

FAILS = "fails in its replay ({}: {}{})"

_FEW = 16
"""Numbers that are copied on the host; more are spilled."""

Numbered: TypeAlias = tuple[int, Slot]


class Trial:
    """What is noted of one frame: errors of its replay, and where it is compared, what shows whether that is right.

    Args:
        nets: of the plan.
        segment: number of the frame's segment.
        compares: whether its replay is compared, by checksums.

    Attributes:
        compares: the same.
    """

    __slots__ = ("_attentions", "_places", "_since", "compares", "nets", "others", "segment")

    def __init__(self, nets: Nets, segment: int, *, compares: bool) -> None:
        self.nets, self.segment, self.compares = nets, segment, compares
        self.others: list[Generator] = []  # that a call may draw from, besides the devices' own
        self._attentions: set[int] = set()  # numbers of the nodes of autograd that are one
        self._places = Places()
        self._since = 0  # the first node of the call that runs

    def begins(self, call: Call, given: Sequence[Tensor]) -> list[Generator]:
        """Look at what is there before a call's forward, which is `given` some tensors.

        Returns:
            Generators to watch besides the devices' own.
        """
        drawn, self._since = self.nets.drawn_from(self.segment), _torch_private.saving_node() + 1
        self.others = list(dict.fromkeys([PYTHON, NUMPY, *drawn])) if self.compares else drawn
        return self.others

    def ends(self, call: Call, results: Sequence[Tensor]) -> None:
        """Look at what a call's forward has done."""
        if self.compares:
            self._attentions |= attentions([each.grad_fn for each in results], self._since)
        drawn = self.nets.drawn_from(self.segment)
        drawn += [each for each, _ in call.random if each in self.others and each not in drawn]

    @_torch_private.never_compiled
    def saves(self, slot: Slot, tensor: Tensor) -> None:
        """Keep what shows whether a replay makes `tensor` for `slot`."""
        with _torch_private.no_torch_functions():
            spilled, witness = self.spilled(tensor), witness_of(tensor, self._places)
            if witness is not None or spilled is not None:
                slot.proof = Proof(tensor, witness, spilled, self._places)

    def spilled(self, tensor: Tensor) -> SpilledTensor | Copied | None:
        """Keep the bytes of a tensor, where the replay is a rehearsal and they say all that it is."""
        return None

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Replay a frame, and compare.

        Raises:
            ReplayError: it makes other values than its forward did, and backward has nothing else to go on with.
            Exception: see `Replay.run`.
        """
        replay = self._replay(frame, last, backward)
        try:
            replay.run(self._needs_all)
        except (Changed, ReplayError) as error:
            raise self.refused(replay.call.key, CANNOT.format(error)) from error
        if self.compares and (wrong := self.wrong(frame, last, backward)):
            raise self.refused(frame.call_at(wrong[0][0]).key, OTHER_VALUES)

    def _replay(self, frame: Frame, last: int, backward: int) -> Replay:
        return Replay(frame, last, backward, skips=self.segment not in self.nets.needed_whole)

    def _needs_all(self) -> None:
        """Replay nothing of this segment without what the plan skips, from now on."""
        self.nets.needed_whole.add(self.segment)

    def refused(self, key: str, why: str) -> ReplayError:
        """Return the error of a call that has no replay, and have it kept from the next forward on."""
        self.nets.fault(self.segment, key, why)
        return kept(key, why)

    def wrong(self, frame: Frame, last: int, backward: int) -> list[Numbered]:
        """Return the slots for which the replay made something else than forward saved; the others need no proof."""
        wrong = _unproven(frame)
        if wrong:
            made = {number: found for number, slot in frame.alive() if (found := _made(slot)) is not None}
            none = [number for number, each in made.items() if is_unwritten(each, made.values(), self._attentions)]
            wrong = [(number, slot) for number, slot in wrong if number not in none]
        return wrong if wrong and self._repeats(frame, last, backward, wrong) else []

    def _repeats(self, frame: Frame, last: int, backward: int, wrong: Sequence[Numbered]) -> bool:
        """Whether another replay makes the same as the one before, or else a kernel does not repeat itself."""
        made: list[tuple[Proof, Witness | None]] = []
        for _, slot in wrong:
            if slot.proof is not None and slot.value is not None and not slot.value.is_cpu:
                made.append((slot.proof, slot.proof.made))
                slot.value = None
        if not made:  # kernels of a CPU repeat themselves
            return True
        self._replay(frame, last, backward).run()
        if all(all_same([(proof.made, before) for proof, before in made])):
            return True
        self.nets.unrepeating(self.segment, frame.call_at(wrong[0][0]).key)
        return False


def _made(slot: Slot) -> Made | None:
    """Return what a replay has made for a slot whose proof is there still."""
    if slot.proof is None or slot.value is None:
        return None
    return Made(slot.value, slot.proof.node, slot.proof.requires_grad)


def _unproven(frame: Frame) -> list[Numbered]:
    """Return the slots for which something speaks against what a replay has made; the others let go of their proofs."""
    proofs = [(number, slot, slot.proof) for number, slot in frame.alive() if slot.proof and slot.value is not None]
    # What has no checksum has nothing that speaks against it.
    pairs = [(proof.made if proof.witness is not None else None, proof.witness) for *_, proof in proofs]
    wrong = []
    for (number, slot, _), proven in zip(proofs, all_same(pairs), strict=True):
        if proven:
            slot.proof = None
        else:
            wrong.append((number, slot))
    return wrong


class Rehearsal(Trial):
    """A segment's first frame: what it drops is spilled too, and backward goes on with that where its replay fails.

    It leaves no trace: what the replay has changed of Python objects and small tensors is put back, and the call is
    kept. Where forward has changed what cannot be put back, such as an iterator, a weight, or an argument through a
    pointer, no replay runs.
    """

    __slots__ = ("_hidden", "_spills", "_sums", "_why")

    def __init__(self, nets: Nets, segment: int) -> None:
        super().__init__(nets, segment, compares=True)
        self._hidden: Hidden | None = None  # of the call that is running
        self._sums: Sums | None = None
        self._spills: dict[str, Spill] = {}  # by type of device
        self._why: dict[str, str] = {}  # calls that are to be kept

    @_torch_private.never_compiled
    def begins(self, call: Call, given: Sequence[Tensor]) -> list[Generator]:
        self._hidden = hidden = Hidden([call])
        with _torch_private.no_torch_functions():
            self._sums = Sums([*hidden.weights(), *hidden.large()], given)
        self.others = list(dict.fromkeys([*super().begins(call, given), *hidden.generators]))
        return self.others

    @_torch_private.never_compiled
    def ends(self, call: Call, results: Sequence[Tensor]) -> None:
        super().ends(call, results)
        hidden, sums, self._hidden, self._sums = self._hidden, self._sums, None, None
        if hidden is not None and sums is not None:
            with _torch_private.no_torch_functions():
                lost = [*sums.changed(), *hidden.lost()]
            if lost:
                self._why[call.key] = CHANGES.format(lost[0])

    def spilled(self, tensor: Tensor) -> SpilledTensor | Copied | None:
        if tensor.is_cpu and tensor.numel() <= _FEW and told_by_bytes(tensor):
            return Copied(tensor)
        try:
            kind = tensor.device.type
            spill = self._spills[kind] = self._spills.get(kind) or self.nets.spill(tensor.device)
            held = spill.take(tensor)
        except NoRoom as error:
            self.nets.no_room(error)
            return None
        return held if isinstance(held, SpilledTensor) else None

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        hidden, replay = Hidden(frame.calls), self._replay(frame, last, backward)
        copies = Copies(hidden.small())

        def again() -> None:
            self._needs_all()
            copies.put_back()
            hidden.put_back()

        try:
            if not self._why or _needs(frame):
                replay.run(again)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if _needs(frame):
                raise self.refused(replay.call.key, CANNOT.format(error)) from error
            self._why.setdefault(replay.call.key, FAILS.format(type(error).__name__, error, replay.hint()))
        finally:
            changed = [*copies.put_back(), *hidden.changed()]
            hidden.put_back()
        if changed:
            self._why.setdefault(replay.call.key, CHANGES.format(changed[0]))
        try:
            wrong = self.wrong(frame, last, backward)
        finally:  # on a device it replays once more
            copies.put_back()
            hidden.put_back()
        if wrong:
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
