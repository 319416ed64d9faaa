"""The fields of a profile, in a file that the checks can import; `profile.py` says what each of them is. No torch."""

from __future__ import annotations

import bisect
from typing import Annotated, Literal

import msgspec

from ..files import Stored
from ..offload import Offload
from ..text.amounts import Bytes, Factor, Seconds
from .copies import CopiedTensors
from .host_seconds import HostSeconds
from .tables import (
    CallRecord,
    FunctionTable,
    Index,
    OpTable,
    Recipe,
    RefusedPart,
    SaveTable,
    Static,
    TensorTable,
)
from .world import UnitRecord, World


class StepRecord(Stored, frozen=True, kw_only=True):
    """What a `Profile` holds, not checked yet."""

    model: str
    mode: Literal["measured", "fake"]
    device: str
    torch_version: str
    recorded: str
    recipe: Recipe | None = None
    samples: Annotated[int, msgspec.Meta(ge=1)] | None = None
    plain_seconds: Seconds
    host_slowdown: Factor | None = None
    host: HostSeconds | None = None
    static: Static
    optimizer: str = ""
    optimizer_step_bytes: Bytes = 0
    ticks: Index
    forward_ticks: Index
    generator_bytes: Bytes = 0
    calls: Annotated[tuple[CallRecord, ...], msgspec.Meta(min_length=1)]
    functions: FunctionTable = FunctionTable()
    ops: OpTable = OpTable()
    tensors: TensorTable
    saves: SaveTable
    backward_ticks: tuple[Index, ...] = ()
    nested_ticks: tuple[Index, ...] = ()
    late_forwards: tuple[tuple[Index, Index], ...] = ()
    rereads: tuple[tuple[Index, Index], ...] = ()
    kept_reads: tuple[tuple[Index, Index, Index], ...] = ()
    refusals: tuple[RefusedPart, ...] = ()
    buffer_bytes: dict[str, Bytes] = msgspec.field(default_factory=dict)
    world: World | None = None
    offload: Offload | None = None
    copies: CopiedTensors | None = None
    units: tuple[UnitRecord, ...] | None = None
    own_replays: str | None = None
    notes: tuple[str, ...] = ()

    def forward_until(self, tick: int) -> int:
        """Return the tick at which the stretch of forwards around a tick ends; -1 if the tick lies in none."""
        if tick < self.forward_ticks:
            return self.forward_ticks
        place = bisect.bisect_right(self.late_forwards, (tick, self.ticks)) - 1
        until = self.late_forwards[place][1] if place >= 0 else -1
        return until if tick < until else -1
