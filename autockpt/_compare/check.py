"""Checks one frame: does its replay make what forward saved? Compares checksums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from .. import _torch_private
from .._calls.checksum import Checksum, Places, all_same, checksum_of_saved
from .._data.errors import ReplayError
from .._found.around import Generator
from .._found.held import Changed
from .._found.host_generators import NUMPY, PYTHON
from .._frames.frame import Descends, Frame, MemberCall
from .._frames.replay import Replay
from .._frames.slots import Slot
from .._stash.spill import SpilledTensor
from .expected import CopiedNumbers, Expected, expected_in, kept
from .findings import Findings
from .hidden import HookState, Snapshot
from .unwritten import Remade, attentions, is_unwritten

OTHER_VALUES = "saved other values in its replay than in its forward: it reads something that changes in between"

CHANGES = "changes {}, which a replay would do again"

CANNOT = "cannot be replayed ({})"

Numbered: TypeAlias = tuple[int, Slot]


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

    __slots__ = ("_attentions", "_looks", "_others", "_places", "_since", "compares", "findings", "segment")

    def __init__(self, findings: Findings, segment: int, *, compares: bool, looks: bool = False) -> None:
        self.findings, self.segment, self.compares, self._looks = findings, segment, compares, looks
        self._others: list[Generator] = []  # generators that a call may draw from, besides the devices' own
        self._attentions: set[int] = set()  # numbers of the autograd nodes of attention kernels
        self._places = Places() if compares else None
        self._since = 0  # number of the first autograd node of the running call

    def begins(self, call: MemberCall, given: Sequence[Tensor]) -> list[Generator]:
        """Prepare for a call's forward; arguments as for `Replayer.begins`."""
        drawn = self.findings.drawn_from(self.segment)
        if not self.compares:
            return drawn
        self._since = _torch_private.saving_node() + 1
        self._others = list(dict.fromkeys([PYTHON, NUMPY, *drawn]))
        return self._others

    def ends(self, call: MemberCall, results: Sequence[Tensor]) -> None:
        """Note which generators a call's forward drew from, and its attention nodes."""
        if not self.compares:
            return
        if call.around.stream is not None:  # else no kernel of a device ran
            self._attentions |= attentions([each.grad_fn for each in results], self._since)
        drawn = self.findings.drawn_from(self.segment)
        drawn += [each for each, _ in call.random if each in self._others and each not in drawn]

    @_torch_private.never_compiled
    def saves(self, slot: Slot, tensor: Tensor) -> None:
        """Note what `tensor` was, to compare it with what a replay makes for `slot`."""
        with _torch_private.no_torch_functions():
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
            wrong = self.compares and self.wrong(frame, last, backward)
        except (Changed, ReplayError) as error:
            raise self.refused(replay.call.key, CANNOT.format(error)) from error
        finally:
            changed = before.put_back() if before is not None else []
            self.findings.hooks_wrote(self.segment, before.hooks_keep if before is not None else None)
            if hooks is not None:
                hooks.put_back()
        if changed:
            self.findings.fault(self.segment, replay.call.key, CHANGES.format(changed[0]))
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
        wrong = _unlike(frame)
        if wrong:
            made = {number: found for number, slot in frame.alive() if (found := _remade(slot)) is not None}
            none = [number for number, each in made.items() if is_unwritten(each, made.values(), self._attentions)]
            wrong = [(number, slot) for number, slot in wrong if number not in none]
        return wrong if wrong and self._repeats(frame, last, backward, wrong) else []

    def _repeats(self, frame: Frame, last: int, backward: int, wrong: Sequence[Numbered]) -> bool:
        """Whether another replay makes the same as the one before. If not, a kernel is nondeterministic."""
        made: list[tuple[Expected, Checksum | None]] = []
        for _, slot in wrong:
            expected = expected_in(slot)
            if expected is not None and slot.value is not None and not slot.value.is_cpu:
                made.append((expected, expected.made))
                slot.value = None
        if not made:  # CPU kernels are deterministic
            return True
        self.make(frame, last, backward).run()
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


def _unlike(frame: Frame) -> list[Numbered]:
    """Return the slots whose checksums of forward and replay differ. What is compared and alike expects nothing now."""
    filled = [
        (number, slot, expected)
        for number, slot in frame.alive()
        if slot.value is not None and (expected := expected_in(slot)) is not None
    ]
    # A tensor without checksum in forward passes: None equals None.
    pairs = [(each.made if each.checksum is not None else None, each.checksum) for *_, each in filled]
    wrong = []
    for (number, slot, each), same in zip(filled, all_same(pairs), strict=True):
        if not same:
            wrong.append((number, slot))
        elif each.checksum is not None or each.spilled is None:
            slot.expected = None  # else nothing tells whether the replay made the same, and forward's own is there
    return wrong
