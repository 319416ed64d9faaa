"""What is written down of a step, and of what stood before it. Nothing is decided yet.

The recorder writes only this. Whose a storage is follows from it alone: see `attribute.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .._device import Event
from .._watch.marks import Mark

HeldBy = Literal["model", "gradient", "model's objects", "graph", "loop"]
"""What holds a storage as a step begins: the model itself, and its batch; a gradient, also one that FSDP2 is yet to
reduce, and what collectives have brought; attributes of the model's, and buffers of a pipeline's stage; the graph of an
earlier step; anything else, which only the loop can have."""


class Stood(NamedTuple):
    """A storage that is allocated as the step begins.

    Attributes:
        key: its key on the tape; a negative number if only a graph would hold it, and it waits elsewhere.
        bytes: its size, as by the allocator.
        held_by: what holds it.
        goes: whether it is freed before the next step begins.
    """

    key: int
    bytes: int
    held_by: HeldBy
    goes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A step, from its first forward to the next step's.

    Attributes:
        events: the events of the tape, with frees of what stood.
        marks: what its markers stand for, by number.
        stood: what is allocated as the step begins.
        ends: storages of the optimizers' states, by the number of a marker where a backward or an optimizer's step is
            over. The last one ends the step; if there is none, it ends with the tape.
        casts: by marker, casts of parameters that autocast has cached, and that an operator reads there.
        cast_bytes: the size of each such cast.
        given: sizes of the arguments of each forward after the first, by storage, by marker.
        elsewhere: storages that are counted elsewhere as the next step begins: gradients, arguments, what is gathered.
        repeats: whether the loop makes each time what it made before this step. Else all that goes is from the loop.
        put_back: whether what the step leaves is put back after it.
        threads: whether threads that no tape sees may free memory, as those of collectives on a CPU do.
        bucket_bytes: bytes of the buckets that DistributedDataParallel allocated anew since the step began.
        views: whether gradients are views of these.
    """

    events: Sequence[Event]
    marks: Mapping[int, Mark]
    stood: Sequence[Stood] = ()
    ends: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    casts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    cast_bytes: Mapping[int, int] = field(default_factory=dict)
    given: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()
    repeats: bool = False
    put_back: bool = False
    threads: bool = False
    bucket_bytes: int = 0
    views: bool = False
