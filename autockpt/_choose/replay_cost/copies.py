"""Which of two copies a member of a run is given, if the replay makes a tensor whose copy from forward is still held.

forward     h.3 ──T──▶ view ──T──▶ lm_head        the caller's own code makes the view: it is held until the replay
replay      h.3 ──T'       T ────▶ lm_head        h.3 makes another copy, and lm_head is given the view that is held
"""

from __future__ import annotations

import enum
import functools
import operator

from ..index.profile_index import Index, Members


class Copies(enum.Flag):
    """Which copies of a tensor are used in a replay."""

    HELD = enum.auto()
    """The copy from forward, which is still held."""
    MADE = enum.auto()
    """The copy that the replay makes."""

    EITHER = HELD | MADE
    """It is not known which."""


def copies_of(index: Index, members: Members, tensor: int) -> dict[int, Copies]:
    """Return, by member, which copies it is given of a tensor that is born in the run.

    The member that the tensor is born in has `MADE`. A member without a recorded argument for it has `EITHER`.
    """
    bearer = index.member_of(members, int(index.birth_node[tensor]))
    found = dict.fromkeys(members, Copies.EITHER) | {bearer: Copies.MADE}
    for member in members[members.index(bearer) + 1 :]:
        ways = [each for each in index.nodes[member].arguments if each.tensor == tensor]
        # The last member that returned this very object handed on the copy that it was given, or made.
        makers = [max((source for source in way.sources if source in found), default=-1) for way in ways]
        copies = [found[maker] if maker >= 0 else Copies.HELD for maker in makers]
        found[member] = functools.reduce(operator.or_, copies, Copies(0)) or Copies.EITHER
    return found
