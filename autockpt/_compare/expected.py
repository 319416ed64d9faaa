"""What a forward saved, kept until a replay has made the same: a checksum of it, and in a rehearsal its bytes."""

from __future__ import annotations

import weakref

from torch import Tensor

from .. import _torch_private
from .._data.errors import ReplayError
from .._frames.held import check_unchanged
from .._frames.slots import Slot
from .._stash.base import SpilledTensor
from .checksum import Checksum, Places, checksum_of_saved

LATE_WRITE = "draws the noise of an RReLU after autograd has saved it, and its replay did not make the same values"


def kept(key: str, why: str) -> ReplayError:
    """Return the error of a call that is kept from the next forward on."""
    return ReplayError(
        f"{key} {why}. The gradients of this step would be wrong, so skip the optimizer's step. The call is kept from "
        f"the next forward on; from the first on with keep={key.rpartition('#')[0]!r}."
    )


class CopiedNumbers:
    """A copy of a few numbers of the host: on a device, attention saves the state of its generator there."""

    __slots__ = ("_copy",)

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.detach().clone()

    def restore(self) -> Tensor:
        """Return a tensor with the same bytes."""
        return self._copy


class Expected:
    """What a forward saved, for the comparison with what its replay makes.

    Attributes:
        checksum: its checksum; None where there is none.
        made: the checksum of what the replay made. Taken as it is saved, like the other: running statistics may be
            written after that.
        spilled: its bytes, where the replay is a rehearsal.
        stands: key of the call that saved it, where backward is to have these bytes; else empty.
        node: number of the node that saved it.
        requires_grad: whether a gradient flows through it.
    """

    __slots__ = ("_places", "_saved", "_version", "checksum", "made", "node", "requires_grad", "spilled", "stands")

    def __init__(
        self, tensor: Tensor, checksum: Checksum | None, spilled: SpilledTensor | CopiedNumbers | None, places: Places
    ) -> None:
        self.checksum, self._places = checksum, places
        self.spilled = spilled
        self.stands = ""
        self.made: Checksum | None = None
        self.node, self.requires_grad = _torch_private.saving_node(), tensor.requires_grad
        self._saved = weakref.ref(tensor)
        self._version = _torch_private.version(tensor)

    def take(self, made: Tensor) -> None:
        """Take what the replay made."""
        with _torch_private.no_torch_functions():
            self.made = checksum_of_saved(made, self._places)

    def tensor(self) -> Tensor:
        """Return what was saved.

        Raises:
            ReplayError: it was written after it had been saved, so that its bytes are not what backward reads.
        """
        assert self.spilled is not None
        if _torch_private.reads_late_writes():
            raise kept(self.stands, LATE_WRITE)
        saved = self._saved()
        if saved is not None:
            check_unchanged(saved, self._version, "a tensor")
        return self.spilled.restore()


def expected_in(slot: Slot) -> Expected | None:
    """Return what forward saved in a slot, where a replay of it is still to be compared with that."""
    return slot.expected if isinstance(slot.expected, Expected) else None
