"""The parts of a profile that tell of other ranks, and of what comes from them. No torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ..text.amounts import Bytes
from .tables import Index, Part


class UnitRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A call of a unit of FSDP2, whose parameters come and go; an array in JSON.

    Attributes:
        call: its index.
        whole_bytes: its parameters, while they are gathered.
        bringing_bytes: what they come in.
        received_bytes: of these, what other ranks send.
        here: in backward, the stretches of ticks at which they are gathered: the first of each, and one past the last.
        coming: the same, at which they are on their way.
    """

    call: Index
    whole_bytes: Bytes
    bringing_bytes: Bytes
    received_bytes: Bytes
    here: tuple[tuple[Index, Index], ...]
    coming: tuple[tuple[Index, Index], ...]


class World(Part, frozen=True, kw_only=True):
    """The ranks of which a step was recorded on one, where no other was there.

    Attributes:
        ranks: how many train together.
        way: how they share the model: ``fsdp2``, also over tensor parallelism, ``dtensor`` (tensor parallelism alone),
            ``ddp``, or ``whole`` where nothing does.
        gathered: the tensors that weights are while they are gathered, and that bring them.
        reduced: the whole gradients that wait for the others, and what they go in.
        bucket_bytes: of the static bytes, buckets in which gradients are added (``ddp``).
    """

    ranks: Annotated[int, msgspec.Meta(ge=1)]
    way: Literal["fsdp2", "dtensor", "ddp", "whole"]
    gathered: tuple[Index, ...] = ()
    reduced: tuple[Index, ...] = ()
    bucket_bytes: Bytes = 0
