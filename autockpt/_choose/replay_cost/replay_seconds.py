"""How long a replay takes, on the device and on the host."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable
from dataclasses import astuple, dataclass

from ..._data.hardware.rooflines import HostCosts
from ..index.profile_index import Index, Members
from .units import NOTHING, UnitsLeft


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """What a replay gives the host to do, as numbers; `HostCosts` has the seconds of each.

    Attributes:
        replays: segments and parts that run again.
        members: calls of theirs, without the first of each.
        saves: tensors that are saved in them, parameters left out.
        units: what is kept or skipped.
        met: functions and calls that a function mode meets.
        launched: operators that run again.
    """

    replays: int = 0
    members: int = 0
    saves: int = 0
    units: int = 0
    met: int = 0
    launched: int = 0

    @classmethod
    def sum(cls, every: Iterable[HostWork]) -> HostWork:
        """Add up the numbers of several."""
        columns = [sum(column) for column in zip(*(astuple(each) for each in every), strict=True)]
        return cls(**dict(zip(cls.__slots__, columns, strict=True))) if columns else cls()

    def seconds(self, costs: HostCosts) -> float:
        """Return the host's own seconds for it, those of launching left out."""
        return self.saves * costs.save_seconds + self.around_seconds(costs)

    def around_seconds(self, costs: HostCosts) -> float:
        """Return the same without those of saved tensors."""
        return (
            self.replays * costs.replay_seconds
            + self.members * costs.member_seconds
            + self.units * costs.kept_seconds
            + self.met * costs.mode_seconds
        )


NO_WORK = HostWork()


def device_seconds(index: Index, members: Members, last: int, alone: Collection[int]) -> float:
    """Forward seconds of what runs again, up to the save `last`.

    Besides torch functions a forward runs the Python around them, which is shared out evenly among them.
    """
    saves, end, whole = index.profile.saves, index.profile.saves.pack[last], 0.0
    for member in members:
        node = index.nodes[member]
        if node.exit <= end:
            whole += index.seconds[member]
        elif node.function >= 0:
            whole += index.seconds[member] if index.begins(member, end) else 0.0
            break
        else:
            elapsed = saves.seconds[last] - node.record.enter_seconds
            whole += index.partial_seconds.get((member, last), elapsed)
            break
    if not alone:
        return whole
    own = [f for f in index.within(members, index.functions) if index.begins(f, end)]
    again = [f for f in own if f not in alone]
    around = max(whole - sum(index.seconds[f] for f in own), 0.0)
    return sum(index.seconds[f] for f in again) + around * len(again) / max(len(own), 1)


def host_work(index: Index, members: Members, end: int, saves: int, left: UnitsLeft = NOTHING) -> HostWork:
    """Return what a replay up to the tick `end` gives the host to do, where so many `saves` are packed.

    Only a function mode tells functions apart, and it meets all that the code around them calls. Units that are whole
    calls have patches of their own.
    """
    functions = {each for each in (*members, *left.keep, *left.skip) if index.is_function(each)}
    watched = {index.nodes[f].parent for f in functions}
    modules = sum(not index.is_function(member) for member in members)
    return HostWork(
        replays=1,
        members=max(modules - 1, 0),
        saves=saves,
        units=len(functions) + len(left.whole),
        met=sum(1 + len(index.children[call]) for call in watched),
        launched=_launched(index, members, end, left.functions),
    )


def _launched(index: Index, members: Members, end: int, alone: Collection[int]) -> int:
    """Count the operators of a run that began up to a tick, without those of functions that do not run again."""
    starts, count = index.profile.ops.start, 0
    for node in (index.nodes[member] for member in members):
        count += bisect.bisect_right(starts, min(end, node.exit)) - bisect.bisect_left(starts, node.enter)
        if node.exit > end:
            break
    return max(count - sum(index.operators_of[f] for f in alone if index.nodes[f].enter <= end), 0)
