"""What forward saved in a slot, kept for the comparison with a replay: a checksum, and in a rehearsal its bytes."""

from __future__ import annotations

import weakref

from torch import Tensor

from ..._calls.checksum import Checksum, checksum_of_saved
from ..._calls.columns import Places
from ..._calls.found.held import check_unchanged
from ..._data.errors import ReplayError
from ..._data.text.keys import name_of
from ..._stash.spill import SpilledTensor
from ..._torch import private
from ..frames.slots import Slot
from .findings import Told

LATE_WRITE = "draws the noise of an RReLU after autograd has saved it, and its replay did not make the same values"


def kept(key: str, why: str, told: Told) -> ReplayError:
    """Return the error that says that a call is kept from the next forward on."""
    return ReplayError(
        f"{key} {why}. The gradients of this step would be wrong, so skip the optimizer's step. "
        f"{told.remedy.format(name_of(key))}"
    )


def kept_late(key: str, told: Told) -> ReplayError:
    """Return the error that says that a replay of an earlier step was wrong, and that its call is kept from now on."""
    return ReplayError(
        f"{key} saved other values in its replay than in its forward, in a step before this one: it reads something "
        "that changes in between. The gradients of that step were wrong, and those of this one may be: skip the "
        "optimizer's step, and load what was saved before if one wrong step does harm. "
        f"{told.remedy.format(name_of(key))}"
    )


class CopiedNumbers:
    """A copy of a small CPU tensor, such as the generator state that attention on a device saves on the CPU."""

    __slots__ = ("_copy",)

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.detach().clone()

    def restore(self) -> Tensor:
        """Return a tensor with the same bytes."""
        return self._copy


class Expected:
    """What a forward saved, for the comparison with what its replay makes.

    Attributes:
        checksum: its checksum; None if it has none.
        made: the checksum of what the replay made. Like the other it is taken at the save: running statistics may be
            written later.
        spilled: its bytes, if the replay is a rehearsal.
        stands: key of the call that saved it, if backward is to read these bytes; else empty.
        node: number of the autograd node that saved it.
        requires_grad: whether a gradient flows through it.
    """

    __slots__ = (
        "_places",
        "_saved",
        "_told",
        "_version",
        "checksum",
        "made",
        "node",
        "requires_grad",
        "spilled",
        "stands",
    )

    def __init__(
        self,
        tensor: Tensor,
        checksum: Checksum | None,
        spilled: SpilledTensor | CopiedNumbers | None,
        places: Places,
        told: Told,
    ) -> None:
        self.checksum, self._places, self._told = checksum, places, told
        self.spilled = spilled
        self.stands = ""
        self.made: Checksum | None = None
        self.node, self.requires_grad = private.saving_node(), tensor.requires_grad
        self._saved = weakref.ref(tensor)
        self._version = private.version(tensor)

    def take(self, made: Tensor) -> None:
        """Take the checksum of what the replay made."""
        with private.no_torch_functions():
            self.made = checksum_of_saved(made, self._places)

    def tensor(self) -> Tensor:
        """Return what was saved.

        Raises:
            ReplayError: the tensor was written after the save, so the spilled bytes are not what backward should read.
        """
        assert self.spilled is not None
        if private.reads_late_writes():
            raise kept(self.stands, LATE_WRITE, self._told)
        saved = self._saved()
        if saved is not None:
            check_unchanged(saved, self._version, "a tensor")
        return self.spilled.restore()


def expected_in(slot: Slot) -> Expected | None:
    """Return what forward saved in a slot; None if it is not (or no longer) to be compared with a replay."""
    return slot.expected if isinstance(slot.expected, Expected) else None
