"""What is held instead of a tensor that waits in a stash, and which tensors of a step do."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch

from .._calls.layout import told_by_bytes
from .._calls.own_errors import OwnErrors
from .._torch import private
from .base import NoRoom, Stash, Token
from .late_writes import LateWrites, Original, renew
from .waiting import Waiting


class SpilledTensor:
    """A tensor's bytes in a stash, and its sizes and strides; a fake tensor has no bytes.

    Attributes:
        original: where it came from; None if nobody asks whether it was written to later.
        written_late: whether it was, as far as `restore` and `settle` have seen.
    """

    __slots__ = (
        "__weakref__",
        "_conjugate",
        "_device",
        "_dtype",
        "_shape",
        "_stash",
        "_stride",
        "_token",
        "original",
        "written_late",
    )

    def __init__(self, stash: Stash, tensor: torch.Tensor) -> None:
        self._stash, self._conjugate = stash, tensor.is_conj()
        self._dtype, self._device = tensor.dtype, tensor.device
        self._shape, self._stride = tensor.shape, tensor.stride()
        self._token: Token | None = None
        self.original: Original | None = None
        self.written_late = False
        if private.fake_mode_of(tensor) is None:
            self._token = stash.put(tensor.conj() if self._conjugate else tensor)

    def __del__(self) -> None:
        if self._token is not None:
            self._stash.free(self._token)

    def restore(self) -> torch.Tensor:
        """Return a new tensor with the same bytes; or with those that its original has now."""
        new = self._read()
        return new.conj() if self._conjugate else new

    def settle(self) -> None:
        """Store the bytes that the original has now, and forget it. Call it once nobody can write to it any more."""
        if self._token is not None and self.original is not None:
            new, before = self._read(), self._token  # it notes whether it was written to late
            if self.written_late:
                self._token = self._stash.put(new)
                self._stash.free(before)
            self.original = None

    def _read(self) -> torch.Tensor:
        new = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=self._device)
        if self._token is not None:
            self._stash.get(self._token, new)
            if self.original is not None:
                now = self.original.now(new)
                self.written_late = now is not None and renew(new, now)
        return new


class SpilledParts(SpilledTensor):
    """What is inside a wrapper, and how to make the wrapper of it; of a DTensor this rank's part."""

    __slots__ = ("_make", "_parts")

    def __init__(
        self, parts: list[SpilledTensor | torch.Tensor], make: Callable[[Sequence[torch.Tensor]], torch.Tensor]
    ) -> None:
        self._token, self._make = None, make
        self._parts = [each if isinstance(each, SpilledTensor) else each.detach() for each in parts]
        self.original, self.written_late = None, False

    def restore(self) -> torch.Tensor:
        made = self._make([each.restore() if isinstance(each, SpilledTensor) else each for each in self._parts])
        self.written_late = any(isinstance(each, SpilledTensor) and each.written_late for each in self._parts)
        return made


class Spill:
    """Puts what a step saves for backward into a stash.

    Args:
        stash: where the bytes wait.
        device: tensors of other devices stay where they are.
        held: tensors that the step holds anyway. They stay where they are.

    Attributes:
        tell_no_room: is called when the stash has no room. What is saved from then on stays where it is, since other
            ranks wait for this rank's step. None if having no room is an error of the step.
        waiting: the storages of which something was put into the stash.
        late: sees uncounted writes to them.
        errors: where errors of our own work in the step wait, its own among them.
    """

    def __init__(self, stash: Stash, device: torch.device, held: Iterable[torch.Tensor]) -> None:
        self._stash: Stash | None = stash
        self.tell_no_room: Callable[[NoRoom], None] | None = None
        self._device, self.waiting, self.errors = device, Waiting(), OwnErrors()
        self._held = {private.storage_key(tensor) for tensor in held}
        self.late = LateWrites(self.waiting, self._held)
        self._last: dict[int, tuple[weakref.ref[torch.Tensor], int, weakref.ref[SpilledTensor]]] = {}

    def take(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        """Return what to hold instead of a saved tensor; the tensor itself if it stays, or is more than its bytes.

        Raises:
            NoRoom: the stash has no room.
        """
        try:
            return self._taken(tensor)
        except NoRoom:
            raise
        except Exception as error:
            self.errors.add(error)
            return tensor

    def _taken(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        if (apart := private.apart(tensor)) is not None:
            waits = [*map(self.take, apart.inside)]
            return SpilledParts(waits, apart.make) if any(isinstance(each, SpilledTensor) for each in waits) else tensor
        self.late.settle()
        stash = self._stash
        if stash is None or tensor.device.type != self._device.type or not told_by_bytes(tensor):
            return tensor
        key = private.storage_key(tensor)  # none in a transform of `torch.func`
        if not key or key in self._held or not tensor.untyped_storage().nbytes():
            return tensor
        if (known := self._spilled_before(tensor)) is not None:
            return known
        try:
            spilled = SpilledTensor(stash, tensor)
        except NoRoom as error:
            if self.tell_no_room is None:
                raise
            self.tell_no_room(error)
            self.close()
            return tensor
        source = self.waiting.add(tensor, spilled)
        if private.fake_mode_of(tensor) is None:
            spilled.original = Original(tensor, source.storage)
            if self.late.are_unseen(tensor):
                self.late.stay(tensor)
        self._last[id(tensor)] = weakref.ref(tensor), private.version(tensor), weakref.ref(spilled)
        return spilled

    def _spilled_before(self, tensor: torch.Tensor) -> SpilledTensor | None:
        """Return what waits of a tensor that was saved before, and not written to since; None where nothing does."""
        last = self._last.get(id(tensor))
        if last is None or self.late.are_open(tensor):
            return None
        reference, version, waiting = last
        return waiting() if reference() is tensor and version == private.version(tensor) else None

    def close(self) -> None:
        """Release the stash, which closes with the last tensor that waits. What is saved from now on is not moved."""
        self._stash = None
