"""FSDP2 units whose parameters a replay of several calls has to gather again. No torch.

backward   ... │ hooks gather unit 3, prefetch 2 │ replay of 1 to 3: gather 1, free it, wait for 2; 3 is gathered │ ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..._data.offload import ASSUMED_MOVE_SECONDS, ASSUMED_SHARD_RATE
from ..._data.profile import Profile
from ..._data.step.world import UnitRecord


class Gather(NamedTuple):
    """What a replay gathers before it runs a call of a unit whose parameters are sharded at that time.

    Attributes:
        whole_bytes: bytes of its gathered parameters.
        bringing_bytes: bytes that the all-gather fills. They are freed once the parameters are whole.
        asked: whether hooks had begun the all-gather before the replay. Then `bringing_bytes` are allocated already,
            and the parameters stay gathered after the call.
        seconds: how long the gather takes; 0 if it was asked for.
    """

    whole_bytes: int
    bringing_bytes: int
    asked: bool
    seconds: float


class UnitsAway:
    """The calls of a profile that are FSDP2 units.

    Args:
        profile: the profile.
        call_nodes: by call of the profile, its node.
    """

    def __init__(self, profile: Profile, call_nodes: Sequence[int]) -> None:
        self._records = {call_nodes[each.call]: each for each in profile.units or ()}

    def __contains__(self, node: int) -> bool:
        return node in self._records

    def away(self, members: Iterable[int], tick: int) -> dict[int, Gather]:
        """Return what a replay at a tick of backward has to gather, by the node of the call."""
        found = ((member, self._records[member]) for member in members if member in self._records)
        return {member: _gather(each, tick) for member, each in found if not _is_in(each.here, tick)}


def _gather(unit: UnitRecord, tick: int) -> Gather:
    asked = _is_in(unit.coming, tick)
    seconds = 0.0 if asked else ASSUMED_MOVE_SECONDS + unit.received_bytes / ASSUMED_SHARD_RATE
    return Gather(unit.whole_bytes, unit.bringing_bytes, asked, seconds)


def _is_in(spans: Iterable[tuple[int, int]], tick: int) -> bool:
    return any(begin <= tick < stop for begin, stop in spans)
