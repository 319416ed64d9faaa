"""Tensors that several ranks have alike; no torch."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .tables import Index, Part


class CopiedTensors(Part, frozen=True, kw_only=True):
    """What calls were given on several ranks alike, as under tensor parallelism.

    Attributes:
        sums: by call, the tensors through which gradients flow into it, each with a checksum of its storage's bytes as
            the call began; empty once ranks have compared theirs.
        ranks: how many ranks have the same bytes; 0 where they have not compared.
        tensors: those that they have alike, and that nobody writes to after such a call began.
    """

    sums: dict[str, tuple[tuple[Index, int], ...]] = msgspec.field(default_factory=dict)
    ranks: Annotated[int, msgspec.Meta(ge=0)] = 0
    tensors: tuple[Index, ...] = ()
