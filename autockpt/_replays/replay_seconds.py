"""How long a replay takes, on the device and on the host."""

from __future__ import annotations

from collections.abc import Collection

from .._index.profile_index import Index, Members
from .units import NOTHING, UnitsLeft


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


def host_seconds(index: Index, members: Members, left: UnitsLeft = NOTHING) -> float:
    """Host seconds of a replay: of each call but the first, of each unit and of each function that is a member.

    Only a function mode tells functions apart, and it meets all that the code around them calls. Units that are whole
    calls have patches of their own.
    """
    functions = {each for each in (*members, *left.keep, *left.skip) if index.is_function(each)}
    watched = {index.nodes[f].parent for f in functions}
    modules = sum(not index.is_function(member) for member in members)
    return (
        index.host.replay_seconds
        + max(modules - 1, 0) * index.host.member_seconds
        + (len(functions) + len(left.whole)) * index.host.kept_seconds
        + sum(1 + len(index.children[call]) for call in watched) * index.host.mode_seconds
    )
