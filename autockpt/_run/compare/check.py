"""Checks one frame: does its replay make what forward saved? Compares checksums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from torch import Tensor

from ..._calls.checksum import Checksum, Pair, all_same, checksum_of_saved, same_so_far
from ..._calls.columns import Places
from ..._calls.found.around import Generator
from ..._calls.found.held import Changed
from ..._calls.found.host_generators import NUMPY, PYTHON
from ..._data.errors import ReplayError
from ..._stash.spill import SpilledTensor
from ..._torch import private
from ..frames.frame import Descends, Frame, MemberCall
from ..frames.replay import Replay
from ..frames.slots import Slot
from .expected import CopiedNumbers, Expected, expected_in, kept, kept_late
from .findings import Findings
from .hidden import HookState, Snapshot
from .unwritten import Remade, attentions, is_unwritten
from .verdicts import Compared, Late

OTHER_VALUES = "saved other values in its replay than in its forward: it reads something that changes in between"

CHANGES = "changes {}, which a replay would do again"

CANNOT = "cannot be replayed ({})"

Numbered: TypeAlias = tuple[int, Slot]

Filled: TypeAlias = tuple[int, Slot, Expected]


class Check:
    """Replays one frame, notes its errors, and compares its tensors with forward's if asked to.

    Args:
        findings: where results are noted.
        segment: number of the frame's segment.
        compares: whether the replay is compared, by checksums.
        looks: whether what it changes in Python objects is looked for, and put back.

    Attributes:
        findings, segment, compares: as given.
    """

    __slots__ = (
        *("_attentions", "_looks", "_on_device", "_others", "_places", "_restores", "_since"),
        *("compares", "findings", "segment"),
    )

    def __init__(self, findings: Findings, segment: int, *, compares: bool, looks: bool = False) -> None:
        self.findings, self.segment, self.compares, self._looks = findings, segment, compares, looks
        self._restores = looks  # whether a replay restores all generators, drawn from or not
        self._others: list[Generator] = []  # generators that a call may draw from, besides the devices' own
        self._attentions: set[int] = set()  # numbers of the autograd nodes of attention kernels
        self._places = Places()
        self._on_device = False  # whether kernels of a device may have run
        self._since = 0  # number of the first autograd node of the running call

    def begins(self, call: MemberCall, given: Sequence[Tensor]) -> list[Generator]:
        """Prepare for a call's forward; arguments as for `Replayer.begins`."""
        drawn = self.findings.drawn_from(self.segment)
        if not self.compares:
            return drawn
        self._since = private.saving_node() + 1
        self._others = list(dict.fromkeys([PYTHON, NUMPY, *drawn]))
        return self._others

    def ends(self, call: MemberCall, results: Sequence[Tensor]) -> None:
        """Note which generators a call's forward drew from, and its attention nodes."""
        if not self.compares:
            return
        if call.around.stream is not None:  # else no kernel of a device ran
            self._on_device = True
            with private.no_torch_functions():
                self._places.call_ends()
            self._attentions |= attentions([each.grad_fn for each in results], self._since)
        drawn = self.findings.drawn_from(self.segment)
        drawn += [each for each, _ in call.random if each in self._others and each not in drawn]
        if not self._restores:  # frames that are not compared do not restore these either
            call.unmoved = [each for each in self._others if each not in drawn]

    @private.never_compiled
    def saves(self, slot: Slot, tensor: Tensor) -> None:
        """Note what `tensor` was, to compare it with what a replay makes for `slot`."""
        with private.no_torch_functions():
            spilled, checksum = self.spilled(tensor), checksum_of_saved(tensor, self._places)
            if checksum is not None or spilled is not None:
                slot.expected = Expected(tensor, checksum, spilled, self._places, self.findings.told)

    def spilled(self, tensor: Tensor) -> SpilledTensor | CopiedNumbers | None:
        """Keep the bytes of a tensor. A rehearsal does so, if the bytes define the tensor; a check keeps none."""
        return None

    def replay(self, frame: Frame, last: int, backward: int) -> None:
        """Replay a frame, and compare.

        Raises:
            ReplayError: the replay made other values than forward, and forward's own are not kept.
            Exception: see `Replay.run`.
        """
        replay = self.make(frame, last, backward)
        hooks, before = self._hooks(frame), Snapshot(frame.calls) if self._looks else None
        try:
            replay.run(self.need_all)
            late = self._late(frame, last, backward) if self.findings.verdicts.unread else None
            wrong = late is None and self.compares and not self._left(frame) and self.wrong(frame, last, backward)
        except (Changed, ReplayError) as error:
            raise self.refused(replay.call.key, CANNOT.format(error)) from error
        finally:
            changed = before.put_back() if before is not None else []
            self.findings.hooks_wrote(self.segment, before.hooks_keep if before is not None else None)
            if hooks is not None:
                hooks.put_back()
        if changed:
            self.findings.fault(self.segment, replay.call.key, CHANGES.format(changed[0]))
        if late is not None:
            self.findings.fault(late.segment, late.tensors[0].key, OTHER_VALUES)
            raise kept_late(late.tensors[0].key, self.findings.told)
        if wrong:
            raise self.refused(frame.call_at(wrong[0][0]).key, OTHER_VALUES)

    def descend(self, frame: Frame, descent: Descends) -> bool:
        """Run the parts of a frame but the last; where that fails its calls are kept from the next forward on."""
        hooks = self._hooks(frame)
        try:
            descent.run()
        except (Changed, ReplayError) as error:
            self.findings.fault(self.segment, descent.call.key, CANNOT.format(error))
            return False
        finally:
            if hooks is not None:
                hooks.put_back()
        return True

    def _hooks(self, frame: Frame) -> HookState | None:
        """Return what the hooks in a frame keep, if its segment's rehearsal has shown that they keep something."""
        written = self.findings.hooks_keep.get(self.segment)
        if written is None:
            return None
        return HookState(frame.calls, [each for known in written if (each := known()) is not None])

    def make(self, frame: Frame, last: int, backward: int) -> Replay:
        """Return a replay of a frame; arguments as for `Replayer.replay`."""
        if frame.whole:
            self.need_all()
        replay: Replay = (frame.makes or Replay)(
            frame, last, backward, skips=self.segment not in self.findings.needed_whole
        )
        return replay

    def need_all(self) -> None:
        """From now on, replay all of this segment, also the functions that the plan skips."""
        self.findings.needed_whole.add(self.segment)

    def refused(self, key: str, why: str) -> ReplayError:
        """Keep a call from the next forward on, since it cannot be replayed; return the error that says so."""
        self.findings.fault(self.segment, key, why)
        return kept(key, why, self.findings.told)

    def wrong(self, frame: Frame, last: int, backward: int) -> list[Numbered]:
        """Return the slots for which a replay made other values than forward saved. The others expect nothing now."""
        with private.no_torch_functions():
            self._places.settle()
        wrong = _unlike(frame)
        if wrong:
            none = self._unwritten(frame)
            wrong = [(number, slot) for number, slot in wrong if number not in none]
        return wrong if wrong and self._repeats(frame, last, backward, wrong) else []

    def _unwritten(self, frame: Frame) -> list[int]:
        """Return the numbers of the slots that are not to be compared, since no kernel need have written them."""
        made = {number: found for number, slot in frame.alive() if (found := _remade(slot)) is not None}
        return [number for number, each in made.items() if is_unwritten(each, made.values(), self._attentions)]

    def _left(self, frame: Frame) -> bool:
        """Leave what only devices know to a later step, unless the host knows of a difference; return whether it is."""
        if self._looks or not self._on_device:
            return False
        with private.no_torch_functions():
            self._places.settle()
            none = self._unwritten(frame)
            every = _filled(frame)
            filled = [each for each in every if each[0] not in none]
            known, later = same_so_far(_pairs(filled))
        theirs = {number for numbers, _ in later for number in numbers}
        if not later or not all(same or number in theirs for number, same in enumerate(known)):
            return False
        for numbers, verdicts in later:
            tensors = [each for number in numbers if (each := _compared(frame, *filled[number][:2])) is not None]
            self.findings.verdicts.add(self.segment, tensors, verdicts)
        for _, slot, _ in every:
            slot.expected = None
        return True

    def _late(self, frame: Frame, last: int, backward: int) -> Late | None:
        """Return what a replay of an earlier step made differently, unless two replays of this one differ as well."""
        late = self.findings.verdicts.read(self.segment)
        if late is None or late.segment in self.findings.unrepeating:
            return None
        slots = [slot for number, slot in frame.alive() if _compared(frame, number, slot) in late.tensors]
        if late.segment != self.segment or not slots:
            return late
        made = self._summed(slots)
        for slot in slots:
            slot.value = None
        self.make(frame, last, backward).run()
        if all(all_same([*zip(made, self._summed(slots), strict=True)])):
            return late
        self.findings.does_not_repeat(self.segment, late.tensors[0].key)
        return None

    def _summed(self, slots: Sequence[Slot]) -> list[Checksum | None]:
        with private.no_torch_functions():
            found = [None if each.value is None else checksum_of_saved(each.value, self._places) for each in slots]
            self._places.settle()
        return found

    def _repeats(self, frame: Frame, last: int, backward: int, wrong: Sequence[Numbered]) -> bool:
        """Run a second replay; return whether it makes the same as the first.

        If it does not, a kernel is nondeterministic, and that is noted among the findings. Tensors on a CPU are not
        looked at.
        """
        made: list[tuple[Expected, Checksum | None]] = []
        for _, slot in wrong:
            expected = expected_in(slot)
            if expected is not None and slot.value is not None and not slot.value.is_cpu:
                made.append((expected, expected.made))
                slot.value = None  # so the next replay fills it, and sets the checksum of what it makes
        if not made:  # CPU kernels are deterministic
            return True
        self.make(frame, last, backward).run()
        with private.no_torch_functions():
            self._places.settle()
        if all(all_same([(expected.made, before) for expected, before in made])):
            return True
        self.findings.does_not_repeat(self.segment, frame.call_at(wrong[0][0]).key)
        return False


def _remade(slot: Slot) -> Remade | None:
    """Return what a replay made for a slot that is still to be compared; None if there is nothing."""
    expected = expected_in(slot)
    if expected is None or slot.value is None:
        return None
    return Remade(slot.value, expected.node, expected.requires_grad)


def _compared(frame: Frame, number: int, slot: Slot) -> Compared | None:
    """Return what tells a saved tensor from others in later steps; None if no replay has made it."""
    made = slot.value
    return None if made is None else Compared(frame.call_at(number).key, made.dtype, made.shape)


def _filled(frame: Frame) -> list[Filled]:
    """Return the slots that a replay has filled and that are still to be compared."""
    return [
        (number, slot, expected)
        for number, slot in frame.alive()
        if slot.value is not None and (expected := expected_in(slot)) is not None
    ]


def _pairs(filled: Iterable[Filled]) -> list[Pair]:
    # A tensor without checksum in forward passes: None equals None.
    return [(each.made if each.checksum is not None else None, each.checksum) for *_, each in filled]


def _unlike(frame: Frame) -> list[Numbered]:
    """Return the slots whose checksums of forward and replay differ. What is compared and alike expects nothing now."""
    filled, wrong = _filled(frame), []
    for (number, slot, each), same in zip(filled, all_same(_pairs(filled)), strict=True):
        if not same:
            wrong.append((number, slot))
        elif each.checksum is not None or each.spilled is None:
            slot.expected = None  # else nothing tells whether the replay made the same, and forward's own is there
    return wrong
