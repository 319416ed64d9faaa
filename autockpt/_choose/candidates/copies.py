"""Which of two copies a member of a run is given, where the replay makes a tensor that is held as well.

forward     h.3 ──T──▶ view ──T──▶ lm_head        the caller's own code makes the view: it is held until the replay
replay      h.3 ──T'       T ────▶ lm_head        h.3 makes another copy, and lm_head is given the view that is held
"""

from __future__ import annotations

import enum
import functools
import operator

from ..._index.profile_index import Index, Members


class Copies(enum.Flag):
    """What stands for a tensor in a replay."""

    HELD = enum.auto()
    """The tensor of forward."""
    MADE = enum.auto()
    """Another, which the replay makes."""

    EITHER = HELD | MADE
    """Nothing tells which."""


def copies_of(index: Index, members: Members, tensor: int) -> dict[int, Copies]:
    """Say which copies of a tensor that is born in a run each of its members is given; the one that bears it makes one.

    Those that are told to get it from nowhere are given either.
    """
    bearer = index.member_of(members, int(index.birth_node[tensor]))
    found = dict.fromkeys(members, Copies.EITHER) | {bearer: Copies.MADE}
    for member in members[members.index(bearer) + 1 :]:
        ways = [each for each in index.nodes[member].arguments if each.tensor == tensor]
        # The last that returned this very object returned what it was given itself.
        makers = [max((source for source in way.sources if source in found), default=-1) for way in ways]
        copies = [found[maker] if maker >= 0 else Copies.HELD for maker in makers]
        found[member] = functools.reduce(operator.or_, copies, Copies(0)) or Copies.EITHER
    return found
