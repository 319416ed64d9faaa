"""Which of two copies a member of a run is given, where the replay makes a tensor that is held as well.

forward     h.3 ──T──▶ view ──T──▶ lm_head        the caller's own code makes the view: it is held until the replay
replay      h.3 ──T'       T ────▶ lm_head        h.3 makes another copy, and lm_head is given the view that is held
"""

from __future__ import annotations

import enum

from .profile_index import Index, Members


class Copies(enum.Flag):
    """What stands for a tensor in a replay."""

    HELD = enum.auto()
    """The tensor of forward."""
    MADE = enum.auto()
    """Another, which the replay makes."""


def copies_of(index: Index, members: Members, tensor: int) -> dict[int, Copies]:
    """Say which copies of a tensor that is born in a run each of its members is given; the one that bears it makes one.

    Those that are told to get it from nowhere are left out.
    """
    bearer = index.member_of(members, int(index.birth_node[tensor]))
    found = {bearer: Copies.MADE}
    for member in members[members.index(bearer) + 1 :]:
        for argument in index.nodes[member].arguments:
            if argument.tensor == tensor:
                # The last that returned this very object returned what it was given itself.
                maker = max((source for source in index.sources(argument) if source in members), default=-1)
                copies = found.get(maker, Copies.HELD | Copies.MADE) if maker >= 0 else Copies.HELD
                found[member] = found.get(member, copies) | copies
    return found
