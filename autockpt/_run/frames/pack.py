"""The pack hook: what autograd holds in place of the tensors that a member saves in forward."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from ..._calls.found.held import Detached
from ..._torch import private
from .frame import Frame
from .slots import Look, OwnedSlot, Slot, reads_alike, sparse_look

_new, _PLAIN = object.__new__, (Tensor, torch.nn.Parameter)

STAYS = (
    "{} saves a tensor that cannot be dropped, and it stays ({}: {}). Results stay exact; memory may exceed the plan. "
    "Please report this."
)


class Pack:
    """The pack hook of one member's forward. Autograd keeps it as long as what it packed, so `close` empties it.

    Attributes:
        error: the first error of the hook's own work. What is saved stays where it is then.
        inputs: arguments of the unit that is running; None outside of units.
        sources: for each slot of that unit, the argument that the saved tensor is a view of; see `source_of`.
        slots: those of the frame.
    """

    __slots__ = ("_frame", "_owners", "error", "inputs", "slots", "sources")

    def __init__(self, frame: Frame, owners: dict[int, Tensor]) -> None:
        self.inputs: list[Tensor] | None = None
        self.sources: list[tuple[int, int]] = []
        self._frame: Frame | None = frame
        self.slots = frame.slots
        self._owners = owners
        self.error: Exception | None = None

    @private.never_compiled
    def hook(self, tensor: Tensor) -> Slot | OwnedSlot | Detached:
        """Return what autograd is to hold for `tensor`. Only a `Slot` does not keep the tensor alive."""
        plain = type(tensor) in _PLAIN
        try:  # an error that came out of an operator might end the process: see `_calls/own_errors.py`
            try:  # as `storage_key`, without a call
                storage = tensor.untyped_storage()._cdata if plain else private.storage_key(tensor)
            except RuntimeError:
                storage = 0
            owner = self._owners.get(storage)
            if owner is not None:
                owned = OwnedSlot(owner, tensor)
                if self.inputs is None:
                    self.slots.append(None)
                return owned
            frame = self._frame
            assert frame is not None
            source = None if plain and self.inputs is None else self._source(frame, tensor, storage)
            if isinstance(source, Detached):
                return source
            slot: Slot = _new(Slot)  # and no `__init__`, which would be one more call for each saved tensor
            slot.frame, slot._version = frame, 0
            slot.value = slot.given = slot.expected = None
            try:
                look: Look = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            except RuntimeError:
                look = sparse_look(tensor)
            slot.look = frame.looks.setdefault(look, look)
            slot.node = type(tensor.grad_fn)
            if frame.replayer.compares:
                frame.replayer.saves(slot, tensor)
            if source is not None:
                self.sources.append(source)
        except Exception as error:
            self.error = self.error or error
            if self.inputs is None:
                self.slots.append(None)
            return Detached(tensor, "a tensor that stays")
        self.slots.append(weakref.ref(slot))
        return slot

    def _source(self, frame: Frame, tensor: Tensor, storage: int) -> tuple[int, int] | Detached | None:
        """Return what a tensor that a unit saves is a view of; or what stays; or None if the replay saves it again."""
        if self.inputs is not None:  # in a unit, whose replay packs nothing
            return source_of(tensor, storage, self.inputs) or Detached(tensor, "a tensor that a kept call saved")
        if tensor.is_nested and not frame.was_given_nested():
            self.slots.append(None)
            return Detached(tensor, "a nested tensor")  # a replay's would have lengths of its own
        return None

    def has_frame(self, wanted: bool) -> bool:
        """Note for replays whether a function inside has a frame of its own; return that."""
        if self.inputs is None and self._frame is not None:  # no replay runs a unit
            self._frame.calls[-1].functions.append(wanted)
        return wanted

    def tell(self, key: str) -> None:
        """Warn of an error of the hook's own work, once the call `key` has returned."""
        if self.error is not None:
            warnings.warn(STAYS.format(key, type(self.error).__name__, self.error), stacklevel=2)

    def close(self) -> None:
        """Drop the references to the frame and to parameters."""
        self._frame, self._owners, self.slots = None, {}, []


def source_of(tensor: Tensor, storage: int, inputs: Sequence[Tensor]) -> tuple[int, int] | None:
    """Return the number of the argument that a tensor is a view of, and the view's offset in it, in elements.

    None if it is a view of no argument, or if a replay cannot make the view.

    Args:
        tensor: what a unit saves.
        storage: its storage's key.
        inputs: the unit's arguments.
    """
    for number, whole in enumerate(inputs):
        if whole is tensor:  # as nearly always
            return (number, 0) if whole.layout is torch.strided and not whole.is_nested else None
    for number, whole in reversed([*enumerate(inputs)]):
        if private.storage_key(whole) == storage:
            if whole.layout is not torch.strided or whole.is_nested or not reads_alike(tensor, whole):
                return None
            return number, int(tensor.storage_offset()) - int(whole.storage_offset())
    return None
